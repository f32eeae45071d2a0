// Streams and events of a GPU.
#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "base/recycled.hpp"
#include "device/cuda.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/event.hpp"
#include "device/cuda/watches.hpp"
#include "tutti/error.hpp"

namespace tutti::cuda {
namespace {

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
  explicit GpuQueue(int ordinal)
      : ordinal_(ordinal), owned_(true), watches_(std::make_shared<Watches>()) {
    const DeviceGuard guard(ordinal);
    // Non-blocking: nothing that others put on the default stream holds it up.
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  GpuQueue(int ordinal, cudaStream_t stream)
      : stream_(stream), ordinal_(ordinal), watches_(Watches::of(ordinal, stream)) {}
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;
  ~GpuQueue() override {
    // What was launched still runs to its end.
    if (!owned_) return;
    with_device_quietly(ordinal_,
                        [this] { check_quietly(cudaStreamDestroy(stream_), "cudaStreamDestroy"); });
  }

  Device device() const override { return {DeviceKind::cuda, ordinal_}; }
  void* native() const override { return stream_; }

  std::shared_ptr<Event::State> submit(std::function<void()> operation,
                                       std::shared_ptr<Stream::Watch> watch) override {
    const DeviceGuard guard(ordinal_);
    if (watch) watches_->add(watch);
    auto event = std::allocate_shared<GpuEvent>(RecyclingAllocator<GpuEvent>(), ordinal_, watches_);
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
    if (const Watches::List* list = other->watches()) {
      for (const std::shared_ptr<Stream::Watch>& watch : *list) watches_->add(watch);
    }
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
    const std::shared_ptr<void> owner(data, [queue = shared_from_this()](void* memory) {
      with_device_quietly(queue->ordinal_, [&] {
        check_quietly(cudaFreeAsync(memory, queue->stream_), "cudaFreeAsync");
      });
    });
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
  cudaStream_t stream_ = nullptr;
  int ordinal_;
  bool owned_ = false;
  std::shared_ptr<Watches> watches_;
};

}  // namespace

std::shared_ptr<Stream::Queue> make_queue(int ordinal) {
  return std::make_shared<GpuQueue>(ordinal);
}

std::shared_ptr<Stream::Queue> borrow_queue(int ordinal, void* stream) {
  return std::make_shared<GpuQueue>(ordinal, static_cast<cudaStream_t>(stream));
}

}  // namespace tutti::cuda
