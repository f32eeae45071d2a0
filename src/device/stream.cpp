// Streams of the CPU: inline, or a thread that runs a queue; and what all devices share.
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/memory.hpp"
#include "base/recycled.hpp"
#include "base/thread.hpp"
#include "base/waiter.hpp"
#include "device/cuda.hpp"
#include "device/queue.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {
namespace {

constexpr std::align_val_t kCacheLine{64};
constexpr WaitPolicy kPolicy{.nap = InterruptCheck::kInterval};

/** An operation on a thread of the CPU. */
class CpuEvent final : public Event::State {
 public:
  bool ready() override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  /** Without the lock where the thread's InterruptCheck looks, which may ask this event. */
  void wait() override {
    for (Waiter waiter(kPolicy); !ready();) {
      waiter.nap([this](Waiter::Duration limit) {
        std::unique_lock lock(mutex_);
        ended_.wait_for(lock, limit, [this] { return done_; });
      });
    }
    if (error_) std::rethrow_exception(error_);
  }
  void end(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      error_ = std::move(error);
    }
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::exception_ptr error_;
};

/** A thread that runs a queue. The last handle's destructor runs what is left, then joins. */
class Worker final : public Stream::Queue {
 public:
  Worker()
      : queue_(std::make_shared<Items>()),
        thread_(start_thread("a stream", [queue = queue_] { run(queue); })) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() override {
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->closing = true;
    }
    queue_->changed.notify_one();
    // An operation may hold the last handle: then this is the thread itself, which runs on alone.
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  std::shared_ptr<Event::State> submit(std::function<void()> operation,
                                       std::shared_ptr<Stream::Watch>) override {
    auto state = std::allocate_shared<CpuEvent>(RecyclingAllocator<CpuEvent>());
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->items.push_back({std::move(operation), state});
    }
    queue_->changed.notify_one();
    return state;
  }

  // A failed event fails what follows through the communicator; here it only orders.
  void wait(const Event& event) override {
    submit([event] { event.wait(); }, {});
  }

  void synchronize() override {
    submit([] {}, {})->wait();
  }

  Buffer allocate(std::int64_t bytes) override { return allocate_on_cpu(bytes); }

  std::shared_ptr<Event::State> copy(View out, ConstView in) override {
    return submit([=] { copy_bytes(out.data, in.data, in.bytes()); }, {});
  }

  std::shared_ptr<Event::State> fill_with_zeros(View out) override {
    return submit([=] { zero_bytes(out.data, out.bytes()); }, {});
  }

 private:
  struct Item {
    std::function<void()> operation;
    std::shared_ptr<CpuEvent> state;
  };
  struct Items {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item, RecyclingAllocator<Item>> items;
    bool closing = false;
  };

  static void run(const std::shared_ptr<Items>& queue) {
    run_soon();  // what it exchanges is short work between waits
    for (;;) {
      Item item;
      {
        std::unique_lock lock(queue->mutex);
        queue->changed.wait(lock, [&] { return queue->closing || !queue->items.empty(); });
        if (queue->items.empty()) return;
        item = std::move(queue->items.front());
        queue->items.pop_front();
      }
      std::exception_ptr error;
      try {
        item.operation();
      } catch (...) {
        error = std::current_exception();
      }
      item.operation = nullptr;  // what it holds is released before anybody learns that it ended
      item.state->end(error);
    }
  }

  std::shared_ptr<Items> queue_;
  std::thread thread_;
};

/** `device`, if it is a GPU that this process can use. */
int checked_ordinal(Device device) {
  if (device.kind != DeviceKind::cuda)
    throw InvalidArgument("device is the CPU, but must be a GPU");
  if (gpu_count() == 0) throw BackendUnavailable("there is no GPU that this process can use");
  if (device.ordinal < 0 || device.ordinal >= gpu_count()) {
    throw InvalidArgument("device.ordinal is " + std::to_string(device.ordinal) +
                          ", but must be from 0 to " + std::to_string(gpu_count() - 1));
  }
  return device.ordinal;
}

void check_copy(const View& out, const ConstView& in, Device device) {
  if (out.dtype != in.dtype || out.count != in.count) {
    throw InvalidArgument("copy: out is " + std::to_string(out.count) + " elements of " +
                          std::string(name_of(out.dtype)) + ", but in is " +
                          std::to_string(in.count) + " of " + std::string(name_of(in.dtype)));
  }
  const bool on_cpu = out.device.kind == DeviceKind::cpu && in.device.kind == DeviceKind::cpu;
  if (device.kind == DeviceKind::cpu && !on_cpu) {
    throw InvalidArgument("copy: memory of a GPU was given to a stream of the CPU");
  }
}

}  // namespace

int gpu_count() { return cuda::device_count(); }

Device device_of(const void* data) { return gpu_count() == 0 ? Device{} : cuda::device_of(data); }

Buffer Buffer::pinned(std::int64_t bytes) {
  if (gpu_count() == 0) throw BackendUnavailable("there is no GPU to pin memory for");
  return cuda::allocate_pinned(bytes);
}

Buffer allocate_on_cpu(std::int64_t bytes) {
  void* data = ::operator new(static_cast<std::size_t>(bytes), kCacheLine, std::nothrow);
  if (data == nullptr) {
    throw SystemError("cannot allocate " + std::to_string(bytes) + " bytes", ENOMEM);
  }
  return {data, bytes,
          std::shared_ptr<void>(data, [](void* memory) { ::operator delete(memory, kCacheLine); })};
}

bool Event::ready() const { return !state_ || state_->ready(); }

void Event::wait() const {
  if (state_) state_->wait();
}

Stream Stream::worker() { return Stream(std::make_shared<Worker>()); }

Stream Stream::on(Device device) { return Stream(cuda::make_queue(checked_ordinal(device))); }

Stream Stream::borrow(Device device, void* cuda_stream) {
  return Stream(cuda::borrow_queue(checked_ordinal(device), cuda_stream));
}

Device Stream::device() const { return queue_ ? queue_->device() : Device{}; }

void* Stream::native() const { return queue_ ? queue_->native() : nullptr; }

Event Stream::submit(std::function<void()> operation, std::shared_ptr<Watch> watch) const {
  if (queue_) return Event(queue_->submit(std::move(operation), std::move(watch)));
  operation();
  return {};
}

void Stream::wait(const Event& event) const {
  if (!event.state()) return;  // it has ended well
  if (queue_) {
    queue_->wait(event);
  } else {
    event.wait();
  }
}

void Stream::synchronize() const {
  if (queue_) queue_->synchronize();
}

Buffer Stream::allocate(std::int64_t bytes) const {
  if (bytes < 0) {
    throw InvalidArgument("bytes is " + std::to_string(bytes) + ", but must not be negative");
  }
  return queue_ ? queue_->allocate(bytes) : allocate_on_cpu(bytes);
}

Event Stream::copy(View out, ConstView in) const {
  check_copy(out, in, device());
  if (queue_) return Event(queue_->copy(out, in));
  if (in.count > 0) std::memmove(out.data, in.data, static_cast<std::size_t>(in.bytes()));
  return {};
}

Event Stream::fill_with_zeros(View out) const {
  if (out.device != device()) {
    throw InvalidArgument("fill_with_zeros: out is not in memory of the stream's device");
  }
  if (queue_) return Event(queue_->fill_with_zeros(out));
  zero_bytes(out.data, out.bytes());
  return {};
}

}  // namespace tutti
