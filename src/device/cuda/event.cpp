// Points in the streams of a GPU.
#include "device/cuda/event.hpp"

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "base/waiter.hpp"
#include "device/cuda/check.hpp"

namespace tutti::cuda {
namespace {

using std::chrono::milliseconds;

constexpr WaitPolicy kPolicy{.spin = milliseconds(2)};
constexpr WaitPolicy kAtTheEnd{.spin = milliseconds(2), .interruptible = false};
constexpr milliseconds kWatch{50};     // between two calls of the watches
constexpr milliseconds kLetEnd{2000};  // for kernels to see that they are aborted

}  // namespace

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

RawEvent::RawEvent(int ordinal) : pool_(EventPool::of(ordinal)), event_(pool_.take()) {}

RawEvent::~RawEvent() { pool_.give(event_); }

GpuEvent::GpuEvent(int ordinal, std::shared_ptr<Watches> watches)
    : ordinal_(ordinal), event_(ordinal), stream_(std::move(watches)), list_(stream_->list()) {}

void GpuEvent::record(cudaStream_t stream) {
  check(cudaEventRecord(event_.get(), stream), "cudaEventRecord");
}

bool GpuEvent::ready() {
  try {
    return has_ended([](Stream::Watch&) {});
  } catch (const std::exception&) {  // wait() throws it
    return true;
  }
}

void GpuEvent::wait() {
  Waiter waiter(kPolicy);
  try {
    bool due = false;
    const auto look = [&](Stream::Watch& watch) {
      if (due) watch.look(waiter.waited());
    };
    while (!has_ended(look)) {
      due = false;
      waiter.pause();
      due = waiter.due(kWatch);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    // Who has been told may go on with the stream; an interrupt is no failure of the event's.
    if (found_by_ != nullptr) stream_->drop(found_by_);
    throw;
  }
}

bool GpuEvent::pending() const {
  const DeviceGuard guard(ordinal_);
  const cudaError_t code = cudaEventQuery(event_.get());
  if (code == cudaErrorNotReady) {
    cudaGetLastError();  // or the next launch on this thread would be blamed for it
    return true;
  }
  check(code, "cudaEventQuery");
  return false;
}

template <class Look>
bool GpuEvent::has_ended(const Look& look) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (ended_) return true;
  }
  bool pending = false;
  try {
    pending = this->pending();
  } catch (...) {
    decide(std::current_exception(), nullptr);
  }
  if (pending) {
    ask(look);
    return false;
  }
  // Asked after the event was seen complete: who aborts says so before, so it was not by that.
  ask([](Stream::Watch& watch) { watch.ended(); });
  decide(nullptr, nullptr);
  return true;
}

template <class Action>
void GpuEvent::ask(const Action& action) {
  if (!list_) return;
  for (const std::shared_ptr<Stream::Watch>& watch : *list_) {
    try {
      action(*watch);
    } catch (...) {
      let_end();
      decide(std::current_exception(), watch.get());
    }
  }
}

void GpuEvent::decide(std::exception_ptr failure, const Stream::Watch* found_by) {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    ended_ = true;
    failure_ = std::move(failure);
    found_by_ = found_by;
  }
  if (failure_) std::rethrow_exception(failure_);
}

void GpuEvent::let_end() const noexcept {
  try {
    for (Waiter waiter(kAtTheEnd, kLetEnd); pending() && !waiter.expired();) waiter.pause();
  } catch (const std::exception&) {  // it has ended, badly
  }
}

}  // namespace tutti::cuda
