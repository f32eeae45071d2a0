// Streams and events of a GPU.
#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/recycled.hpp"
#include "base/waiter.hpp"
#include "device/cuda.hpp"
#include "device/cuda/check.hpp"
#include "tutti/error.hpp"

namespace tutti::cuda {
namespace {

constexpr std::size_t kMostDevices = 64;
constexpr WaitPolicy kPolicy{.spin = std::chrono::milliseconds(2)};
constexpr std::chrono::milliseconds kWatch{50};  // between two calls of the watch

/** The events of a device that nobody uses: making one takes longer than recording it. */
class EventPool {
 public:
  /** It lives as long as the process: events may end in any order. */
  static EventPool& of(int ordinal) {
    static auto* const pools = new std::array<EventPool, kMostDevices>;
    return pools->at(static_cast<std::size_t>(ordinal));
  }

  /** An event of the current device. */
  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
      free_.reserve(++made_);  // give() needs no memory
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }
  /** Who waits for what the event has recorded goes on waiting for that. */
  void give(cudaEvent_t event) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
  std::size_t made_ = 0;
};

/** A cudaEvent_t of the current device. */
class RawEvent {
 public:
  explicit RawEvent(int ordinal) : pool_(EventPool::of(ordinal)), event_(pool_.take()) {}
  RawEvent(const RawEvent&) = delete;
  RawEvent& operator=(const RawEvent&) = delete;
  ~RawEvent() { pool_.give(event_); }

  cudaEvent_t get() const { return event_; }

 private:
  EventPool& pool_;
  cudaEvent_t event_;
};

/** A point in a stream. Waiting for it polls, so that a watch can look after the other ranks. */
class GpuEvent final : public Event::State {
 public:
  GpuEvent(int ordinal, Stream::Watch watch) : event_(ordinal), watch_(std::move(watch)) {}

  void record(cudaStream_t stream) {
    check(cudaEventRecord(event_.get(), stream), "cudaEventRecord");
  }
  cudaEvent_t get() const { return event_.get(); }
  const Stream::Watch& watch() const { return watch_; }

  bool ready() override {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return true;
    }
    return !pending();
  }

  void wait() override {
    Waiter waiter(kPolicy);
    const auto look = [&] {
      if (watch_ && waiter.due(kWatch)) watch_(waiter.waited());
    };
    while (going_on(look)) waiter.pause();  // an interrupt is no failure of the event's
  }

 private:
  bool pending() const {
    const cudaError_t code = cudaEventQuery(event_.get());
    if (code == cudaErrorNotReady) {
      cudaGetLastError();  // or the next launch on this thread would be blamed for it
      return true;
    }
    check(code, "cudaEventQuery");
    return false;
  }

  /** Whether it is still to be waited for; looks after the others first if it is. A failure is the
   * event's for ever. */
  template <class Look>
  bool going_on(const Look& look) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
    }
    try {
      if (!pending()) return false;
      look();
      return true;
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      std::rethrow_exception(failure_);
    }
  }

  RawEvent event_;
  Stream::Watch watch_;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/** Whether CUDA copies from and to this memory of the CPU while the CPU waits. */
bool is_pageable(ConstView memory) {
  if (memory.count == 0 || memory.device.kind != DeviceKind::cpu) return false;
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, memory.data), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeUnregistered;
}

/** A pool that keeps what it was given back, so that a step of training allocates nothing new. */
cudaMemPool_t make_pool(int ordinal) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = ordinal;
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  std::uint64_t keep = UINT64_MAX;
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
        "cudaMemPoolSetAttribute");
  return pool;
}

/** The pool of a device. It lives as long as the process: buffers may end in any order. */
cudaMemPool_t pool_of(int ordinal) {
  static std::array<std::once_flag, kMostDevices> made;
  static std::array<cudaMemPool_t, kMostDevices> pools{};
  const auto at = static_cast<std::size_t>(ordinal);
  if (at >= kMostDevices) throw Error("GPU " + std::to_string(ordinal) + " is one too many");
  std::call_once(made[at], [&] { pools[at] = make_pool(ordinal); });
  return pools[at];
}

class GpuQueue final : public Stream::Queue, public std::enable_shared_from_this<GpuQueue> {
 public:
  explicit GpuQueue(int ordinal) : ordinal_(ordinal), owned_(true) {
    const DeviceGuard guard(ordinal);
    // Non-blocking: nothing that others put on the default stream holds it up.
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  GpuQueue(int ordinal, cudaStream_t stream) : stream_(stream), ordinal_(ordinal) {}
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;
  ~GpuQueue() override {
    // What was launched still runs to its end.
    if (owned_) check_quietly(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  Device device() const override { return {DeviceKind::cuda, ordinal_}; }
  void* native() const override { return stream_; }

  std::shared_ptr<Event::State> submit(std::function<void()> operation,
                                       Stream::Watch watch) override {
    const DeviceGuard guard(ordinal_);
    if (watch) keep(std::move(watch));
    auto event = std::allocate_shared<GpuEvent>(RecyclingAllocator<GpuEvent>(), ordinal_, kept());
    operation();
    event->record(stream_);
    return event;
  }

  void wait(const Event& event) override {
    const auto* other = dynamic_cast<const GpuEvent*>(event.state().get());
    if (other == nullptr) {
      event.wait();
      return;
    }
    if (other->watch()) keep(other->watch());
    const DeviceGuard guard(ordinal_);
    check(cudaStreamWaitEvent(stream_, other->get(), 0), "cudaStreamWaitEvent");
  }

  void synchronize() override {
    submit([] {}, {})->wait();
  }

  Buffer allocate(std::int64_t bytes) override {
    if (bytes == 0) return {nullptr, 0, nullptr, device()};
    const DeviceGuard guard(ordinal_);
    void* data = nullptr;
    check(
        cudaMallocFromPoolAsync(&data, static_cast<std::size_t>(bytes), pool_of(ordinal_), stream_),
        "cudaMallocFromPoolAsync");
    // The buffer keeps the stream, on which its memory goes back.
    const std::shared_ptr<void> owner(
        data, [queue = shared_from_this()](void* memory) { queue->give_back(memory); });
    return {data, bytes, owner, device()};
  }

  std::shared_ptr<Event::State> copy(View out, ConstView in) override {
    const DeviceGuard guard(ordinal_);
    // CUDA itself would wait for the stream, and never learn that a rank is lost.
    if (is_pageable(out) || is_pageable(in)) synchronize();
    return submit(
        [&] {
          if (out.count == 0 || out.data == in.data) return;
          check(cudaMemcpyAsync(out.data, in.data, static_cast<std::size_t>(out.bytes()),
                                cudaMemcpyDefault, stream_),
                "cudaMemcpyAsync");
        },
        {});
  }

  std::shared_ptr<Event::State> fill_with_zeros(View out) override {
    return submit(
        [&] {
          if (out.count == 0) return;
          check(cudaMemsetAsync(out.data, 0, static_cast<std::size_t>(out.bytes()), stream_),
                "cudaMemsetAsync");
        },
        {});
  }

 private:
  // What comes after a collective waits for it, and so for the other ranks: the last watch of a
  // stream is that of all its later operations.
  void keep(Stream::Watch watch) {
    const std::lock_guard lock(mutex_);
    watch_ = std::move(watch);
  }
  Stream::Watch kept() {
    const std::lock_guard lock(mutex_);
    return watch_;
  }

  void give_back(void* memory) noexcept {
    try {
      const DeviceGuard guard(ordinal_);
      check_quietly(cudaFreeAsync(memory, stream_), "cudaFreeAsync");
    } catch (const std::exception& error) {
      log(LogLevel::warn, error.what());
    }
  }

  cudaStream_t stream_ = nullptr;
  int ordinal_;
  bool owned_ = false;
  std::mutex mutex_;
  Stream::Watch watch_;
};

}  // namespace

std::shared_ptr<Stream::Queue> make_queue(int ordinal) {
  return std::make_shared<GpuQueue>(ordinal);
}

std::shared_ptr<Stream::Queue> borrow_queue(int ordinal, void* stream) {
  return std::make_shared<GpuQueue>(ordinal, static_cast<cudaStream_t>(stream));
}

}  // namespace tutti::cuda
