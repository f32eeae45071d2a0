// Streams of the CPU: inline, or a thread that runs a queue.
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "communicator/recycled.hpp"
#include "tutti/device.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {

struct Event::State {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::exception_ptr error;
};

bool Event::ready() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Event::wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  while (
      !state_->ended.wait_for(lock, InterruptCheck::kInterval, [this] { return state_->done; })) {
    InterruptCheck::poll();
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

/** A thread that runs a queue. The last handle's destructor runs what is left, then joins. */
class Stream::Worker {
 public:
  Worker() : queue_(std::make_shared<Queue>()), thread_(&Worker::run, queue_) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
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

  std::shared_ptr<Event::State> submit(std::function<void()> operation) {
    auto state = std::allocate_shared<Event::State>(RecyclingAllocator<Event::State>());
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->items.push_back({std::move(operation), state});
    }
    queue_->changed.notify_one();
    return state;
  }

 private:
  struct Item {
    std::function<void()> operation;
    std::shared_ptr<Event::State> state;
  };
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item, RecyclingAllocator<Item>> items;
    bool closing = false;
  };

  static void run(const std::shared_ptr<Queue>& queue) {
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
      {
        const std::lock_guard lock(item.state->mutex);
        item.state->done = true;
        item.state->error = error;
      }
      item.state->ended.notify_all();
    }
  }

  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

Stream Stream::worker() {
  Stream stream;
  stream.worker_ = std::make_shared<Worker>();
  return stream;
}

Event Stream::submit(std::function<void()> operation) const {
  if (worker_) return Event(worker_->submit(std::move(operation)));
  operation();
  return {};
}

void Stream::wait(const Event& event) const {
  if (!worker_) {
    event.wait();
    return;
  }
  // A failed event fails what follows through the communicator; here it only orders.
  worker_->submit([event] { event.wait(); });
}

void Stream::synchronize() const {
  if (worker_) Event(worker_->submit([] {})).wait();
}

}  // namespace tutti
