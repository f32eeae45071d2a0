// Points in the streams of a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <memory>
#include <mutex>

#include "device/cuda/watches.hpp"
#include "device/queue.hpp"

namespace tutti::cuda {

inline constexpr std::size_t kMostDevices = 64;

class EventPool;

/** A cudaEvent_t of the current device. */
class RawEvent {
 public:
  explicit RawEvent(int ordinal);
  RawEvent(const RawEvent&) = delete;
  RawEvent& operator=(const RawEvent&) = delete;
  ~RawEvent();

  cudaEvent_t get() const { return event_; }

 private:
  EventPool& pool_;
  cudaEvent_t event_;
};

/**
 * A point in a stream. Waiting for it polls, so that the stream's watches can look after the other
 * ranks, and asks them how it ended: work that is aborted ends like any other.
 */
class GpuEvent final : public Event::State {
 public:
  /** Of a stream of the current device, whose watches are `watches`. */
  GpuEvent(int ordinal, std::shared_ptr<Watches> watches);

  void record(cudaStream_t stream);
  cudaEvent_t get() const { return event_.get(); }
  /** Null if there are none. */
  const Watches::List* watches() const { return list_.get(); }

  bool ready() override;
  void wait() override;

 private:
  bool pending() const;
  /** Whether it has ended; looks around if it has not: look(Stream::Watch&). Throws if it has ended
   * badly. Who sees first how it ended decides that for ever. */
  template <class Look>
  bool has_ended(const Look& look);
  /** What it ended with: calls action(Stream::Watch&) for each watch. */
  template <class Action>
  void ask(const Action& action);
  void decide(std::exception_ptr failure, const Stream::Watch* found_by);
  /** After a failure: until the GPU has left the memory of what was aborted alone. */
  void let_end() const noexcept;

  int ordinal_;
  RawEvent event_;
  std::shared_ptr<Watches> stream_;            // of the stream, which go on
  std::shared_ptr<const Watches::List> list_;  // as they were when the event was made
  std::mutex mutex_;
  bool ended_ = false;
  std::exception_ptr failure_;
  const Stream::Watch* found_by_ = nullptr;
};

}  // namespace tutti::cuda
