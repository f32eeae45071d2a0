// What is behind a Communicator: it orders calls, runs them on streams, and remembers failures.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "base/ticket_lock.hpp"
#include "comm/record/journal.hpp"
#include "comm/record/trace.hpp"
#include "tutti/call.hpp"
#include "tutti/communicator.hpp"

namespace tutti {

/** Shared with calls that are still on a stream, which may outlive the Communicator. */
class Communicator::Impl : public std::enable_shared_from_this<Communicator::Impl> {
 public:
  explicit Impl(std::unique_ptr<Transport> transport);

  const Transport& transport() const { return *transport_; }
  /** How many exceptions were under way on the thread that made this. */
  int exceptions_at_start() const { return exceptions_at_start_; }

  /** Runs a call where its memory is, on a stream, when its turn has come. */
  Event run(const Call& call, const Stream& stream);
  /** Runs a call that returns something, on this thread: action(Transport&). */
  template <class Action>
  void run_here(const Call& call, const Action& action) {
    refuse_in_forked_child();
    Turn turn(*this, call);
    turn.wait();
    execute(call, [&] { action(*transport_); });
  }
  /** As run_here(), on a GPU: action(DeviceTransport&, const Stream&). */
  template <class Action>
  void run_here_on_gpu(const Call& call, const Action& action) {
    refuse_in_forked_child();
    Turn turn(*this, call);
    turn.wait();
    launch(call, own_stream(call.device), action).wait();
  }

  /** The transport between GPUs, once a call on memory of a GPU has made it. */
  DeviceTransport* gpu() const { return gpu_; }
  void check_device(Device device) const {
    if (device.kind == DeviceKind::cpu) return;
    if (const DeviceTransport* own = gpu_) check_own_gpu(device, own->device());
  }
  void adopt(std::unique_ptr<DeviceTransport> gpu) {
    gpu_owner_ = std::move(gpu);
    gpu_ = gpu_owner_.get();
  }

  void abort(std::string_view reason) noexcept;

  /** For waits that are not calls, made now and then: throws what the communicator has failed with,
   * and PeerLost if a rank has died. */
  void look_after_ranks() {
    guarded([&] { transport_->pulse({}); });
  }

  /** From now on calls are in `trace`, too; null changes nothing. */
  void add_trace(std::shared_ptr<record::Trace> trace);
  /** Calls are in the timeline of those of `other`. */
  void share_trace(const Impl& other);
  /** The present timeline of this rank; null if there is none. */
  record::Trace* trace() const { return journal_ == nullptr ? nullptr : journal_->trace(); }
  record::Journal* journal() const { return journal_; }

 private:
  /** A call on a worker stream, which may outlive the Communicator. */
  struct Queued;

  /**
   * Every call begins and ends here, on the thread that executes it: on a GPU, that launches it.
   * Whoever watches calls does it at this place.
   */
  template <class Action>
  void execute(const Call& call, const Action& action) {
    if (shows_calls_) log(LogLevel::debug, call.describe());
    record::CallNote note(journal_, call);
    guarded(action);
    note.ended(call.device.kind == DeviceKind::cpu ? record::CallState::done
                                                   : record::CallState::launched);
  }

  /** Runs what may fail, and remembers the failure. */
  template <class Action>
  void guarded(const Action& action) {
    refuse_if_broken();
    try {
      action();
    } catch (...) {
      note_failure();
      throw;
    }
  }
  /** In a handler: what the exception means for later calls. */
  void note_failure();
  /** What the ranks of this host did last, unless another of them has told it. */
  void tell_flight(const std::exception& error) noexcept;

  /** The place of a call among the collectives, the sends or the recvs; an exchange has one among
   * the sends and one among the recvs, a group all three. */
  class Turn {
   public:
    Turn(Impl& impl, const Call& call) {
      const bool is_group = call.operation == Operation::group;
      if (call.operation == Operation::exchange || is_group) {
        const std::lock_guard lock(impl.drawing_several_);  // two of them in the same order in all
        first_.emplace(impl.sends_);
        second_.emplace(impl.receives_);
        if (is_group) third_.emplace(impl.collectives_);
      } else if (call.operation == Operation::send) {
        first_.emplace(impl.sends_);
      } else {
        first_.emplace(call.operation == Operation::recv ? impl.receives_ : impl.collectives_);
      }
    }
    void wait() const {
      first_->wait();
      if (second_) second_->wait();
      if (third_) third_->wait();
    }
    void leave() {
      first_->leave();
      if (second_) second_->leave();
      if (third_) third_->leave();
    }

   private:
    std::optional<TicketLock::Place> first_;
    std::optional<TicketLock::Place> second_;
    std::optional<TicketLock::Place> third_;
  };

  Event run_on_gpu(const Call& call, const Stream& stream);
  /** On a worker stream, as soon as all streams before have been asked: run(Queued&). */
  template <class Run>
  Event queue(const Call& call, const Stream& stream, const Run& run);
  /** Launches what comes after `before`, and waits for it. */
  void perform_on_gpu(const Call& call, const Event& before, Turn& turn);
  Event launch(const Call& call, const Stream& stream);

  /** Launches on a stream of a GPU: action(DeviceTransport&, const Stream&). NCCL wants the
   * operations of a communicator one after the other, so each stream waits for the one that was
   * used before it. */
  template <class Action>
  Event launch(const Call& call, const Stream& stream, const Action& action) {
    const std::lock_guard lock(launching_);
    check_launch(call, stream);
    execute(call, [&] {
      if (!(last_stream_ == stream)) stream.wait(last_);
      last_ = stream.submit([&] { action(use_gpu(stream), stream); }, watch());
      last_stream_ = stream;
    });
    return last_;
  }
  void check_launch(const Call& call, const Stream& stream) const;
  /** The transport between GPUs, for launches on `stream`; the first one makes it. */
  DeviceTransport& use_gpu(const Stream& stream);
  static void check_own_gpu(Device device, Device own);
  /** What a wait for a GPU does meanwhile; it may outlive the communicator. */
  Stream::Watch watch();
  const Stream& own_stream(Device device);

  void refuse_in_forked_child() const;
  void refuse_if_broken();
  /** What every further call throws. A lost rank stays named: two calls may be under way at once,
   * and the one that starts second must not hide what the first has found. */
  template <class Refusal>
  void mark_broken(const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    if (broken_.exchange(true)) return;
    refusal_ = std::make_exception_ptr(refusal);
    cancel_on_gpu();
  }
  /** Or streams of the caller would wait for ever. */
  void cancel_on_gpu() noexcept {
    if (DeviceTransport* gpu = gpu_) gpu->cancel();
  }

  TicketLock collectives_;
  TicketLock sends_;
  TicketLock receives_;
  std::mutex drawing_several_;
  std::vector<std::shared_ptr<record::Trace>> traces_;  // all there ever were: calls use the last
  std::unique_ptr<Transport> transport_;
  record::Journal* const journal_;
  const bool shows_calls_;
  std::mutex launching_;
  Stream own_stream_;                           // of the GPU, for calls on streams of the CPU
  std::unique_ptr<DeviceTransport> gpu_owner_;  // made by the first call on memory of a GPU
  std::atomic<DeviceTransport*> gpu_ = nullptr;
  Event last_;  // what was launched last, and where
  Stream last_stream_;
  const ForkGuard fork_guard_;
  const int exceptions_at_start_ = std::uncaught_exceptions();
  std::mutex submitting_;
  std::atomic<bool> broken_ = false;
  std::mutex mutex_;
  std::exception_ptr refusal_;
};

}  // namespace tutti
