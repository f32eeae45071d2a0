// What is behind a Communicator: it orders calls, runs them on streams, and remembers failures.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "base/recycled.hpp"
#include "comm/communicator/health.hpp"
#include "comm/communicator/turn.hpp"
#include "comm/record/journal.hpp"
#include "comm/record/trace.hpp"
#include "device/cuda.hpp"
#include "tutti/call.hpp"
#include "tutti/communicator.hpp"

namespace tutti {

/** Shared with calls that are still on a stream, which may outlive the Communicator. */
class Communicator::Impl : public std::enable_shared_from_this<Communicator::Impl> {
 public:
  explicit Impl(std::unique_ptr<Transport> transport);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /** The other ranks hear first that this one leaves; then the GPU's work ends, or is ended. */
  ~Impl();

  const Transport& transport() const { return *transport_; }
  /** How many exceptions were under way on the thread that made this. */
  int exceptions_at_start() const { return exceptions_at_start_; }

  /** Runs a call where its memory is, on a stream, when its turn has come. */
  Event run(const Call& call, const Stream& stream);
  /** Runs a call that returns something, on this thread: action(Transport&). */
  template <class Action>
  void run_here(const Call& call, const Action& action) {
    refuse_in_forked_child();
    Turn turn(turns_, call);
    turn.wait();
    execute(call, [&] { action(*transport_); });
  }
  /** As run_here(), for GPUs: action(DeviceTransport&) finds the device current. */
  template <class Action>
  void run_here_on_gpu(const Call& call, const Action& action) {
    refuse_in_forked_child();
    Turn turn(turns_, call);
    turn.wait();
    const std::lock_guard lock(launching_);
    check_launch(call);
    execute(call, [&] {
      DeviceTransport& gpu = connected(call.device);
      cuda::with_device(call.device.ordinal, [&] { action(gpu); });
    });
  }
  /** Blocks. Zeros in memory of this rank's GPU, for which the other ranks wait. */
  void fill_with_zeros(View memory);

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
  /** Waits for what `stream` is given look after the other ranks, too. */
  void watch(const Stream& stream);

  void abort(std::string_view reason) noexcept;

  /** For waits that are not calls, made now and then: throws what the communicator has failed with,
   * and PeerLost if a rank has died that had not left. */
  void look_after_ranks() {
    guarded([&] { transport_->look_after_present(); });
  }

  /** A store has found that a rank has died: throws what the communicator fails with, on all ranks.
   * Nothing happens if it has failed already. */
  void lose_ended(const PeerLost& ended) {
    if (!health_->is_broken()) guarded([&] { transport_->lose_ended(ended); });
  }

  /** From now on calls are in `trace`, too; null changes nothing. */
  void add_trace(std::shared_ptr<record::Trace> trace);
  /** Calls are in the timeline of those of `other`. */
  void share_trace(const Impl& other);
  /** The present timeline of this rank; null if there is none. */
  record::Trace* trace() const { return journal_ == nullptr ? nullptr : journal_->trace(); }
  record::Journal* journal() const { return journal_; }

 private:
  struct Queued;
  class GpuWatch;

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
    health_->refuse_if_broken();
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

  /** On a worker stream, as soon as all streams before have been asked: run(Queued&). */
  template <class Run>
  Event queue(const Call& call, const Stream& stream, const Run& run);

  Event run_on_gpu(const Call& call, const Stream& stream);
  /** What the default stream was given so far; nothing where this rank cannot use its GPU yet. */
  Event default_stream(Device device);
  /** Launches what comes after `before`, and waits for it. */
  void perform_on_gpu(const Call& call, const Event& before, Turn& turn);
  /** Launches on `stream`, or on one of its own after `before` where that is inline. NCCL wants the
   * operations of a communicator one after the other, so each stream waits for the one that was
   * used before it. */
  Event launch(const Call& call, const Stream& stream, const Event& before = {});
  /** Through `gpu`; null where this rank is alone. */
  void start(const Call& call, DeviceTransport* gpu, const Stream& on);
  /** Room for what an in-place all_to_all sends. Collective where it has to grow. */
  void reserve_copy(std::int64_t bytes, Device device);
  /** A lack of memory is this rank's alone, and the others wait for it: unlike one that allocate()
   * finds, which is the same on all ranks. */
  template <class Action>
  void on_this_rank(const Action& action) {
    try {
      action();
    } catch (const SystemError& error) {
      abort(error.what());
      throw;
    }
  }
  void check_launch(const Call& call) const;
  /** The transport between GPUs; the first call makes it. */
  DeviceTransport& connected(Device device);
  static void check_own_gpu(Device device, Device own);
  /** What a wait for a GPU does meanwhile. */
  const std::shared_ptr<GpuWatch>& gpu_watch();
  const Stream& own_stream(Device device);

  void refuse_in_forked_child() const;
  template <class Refusal>
  void mark_broken(const Refusal& refusal) {
    if (health_->break_with(refusal)) cancel_on_gpu();
  }
  /** Or streams of the caller would wait for ever. */
  void cancel_on_gpu() noexcept {
    if (DeviceTransport* gpu = gpu_) gpu->cancel();
  }

  Turns turns_;
  std::vector<std::shared_ptr<record::Trace>> traces_;  // all there ever were: calls use the last
  std::unique_ptr<Transport> transport_;
  record::Journal* const journal_;
  const bool shows_calls_;
  std::mutex launching_;
  Stream own_stream_;                           // of the GPU, for calls on streams of the CPU
  std::unique_ptr<DeviceTransport> gpu_owner_;  // made by the first call on memory of a GPU
  std::atomic<DeviceTransport*> gpu_ = nullptr;
  Buffer copy_;  // of what an in-place all_to_all sends
  std::shared_ptr<GpuWatch> watch_;
  Event last_;  // what was launched last, and where
  Stream last_stream_;
  const ForkGuard fork_guard_;
  const int exceptions_at_start_ = std::uncaught_exceptions();
  std::mutex submitting_;
  std::mutex mutex_;
  const std::shared_ptr<Health> health_ = std::make_shared<Health>();
};

/** A call on a worker stream, which may outlive the Communicator. */
struct Communicator::Impl::Queued {
  Queued(std::shared_ptr<Impl> self_in, const Call& call_in)
      : self(std::move(self_in)),
        call(call_in),
        counts(call_in.counts.begin(), call_in.counts.end()),
        arriving(call_in.arriving.begin(), call_in.arriving.end()),
        messages(call_in.messages.begin(), call_in.messages.end()),
        turn(self->turns_, call_in) {
    call.counts = counts;
    call.arriving = arriving;
    call.messages = messages;
  }
  std::shared_ptr<Impl> self;
  Call call;
  std::vector<std::int64_t> counts;  // the caller's may be gone
  std::vector<std::int64_t> arriving;
  std::vector<Message> messages;
  Turn turn;
};

template <class Run>
Event Communicator::Impl::queue(const Call& call, const Stream& stream, const Run& run) {
  // In one step, or another thread could queue a later place in front of this one.
  const std::lock_guard lock(submitting_);
  const auto queued =
      std::allocate_shared<Queued>(RecyclingAllocator<Queued>(), shared_from_this(), call);
  return stream.submit(Recycled([queued, run] { run(*queued); }));
}

}  // namespace tutti
