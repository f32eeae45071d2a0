// What is behind a Communicator: it orders operations, runs them on streams, and remembers
// failures.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "base/recycled.hpp"
#include "base/ticket_lock.hpp"
#include "comm/communicator/backends.hpp"
#include "device/cpu/kernel_table.hpp"
#include "tutti/communicator.hpp"

namespace tutti {

/** Shared with operations that are still on a stream, which may outlive the Communicator. */
class Communicator::Impl : public std::enable_shared_from_this<Communicator::Impl> {
 public:
  explicit Impl(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
    if (log_enabled(LogLevel::info) && transport_->rank() == 0) {
      const std::string kernels = cpu::name_of(cpu::active_isa());
      log(LogLevel::info, transport_->describe() + "; " + kernels + " kernels");
    }
  }

  const Transport& transport() const { return *transport_; }
  /** How many exceptions were under way on the thread that made this. */
  int exceptions_at_start() const { return exceptions_at_start_; }

  /** Runs a collective, or one side of a message, where its memory is, on a stream when its turn
   * has come: action(Collectives&). */
  template <class Action>
  Event run(TicketLock Impl::*order, Device device, const Stream& stream, const Action& action) {
    if (device.kind == DeviceKind::cpu) {
      return run_on_cpu(order, stream, action);
    }
    return run_on_gpu(order, device, stream,
                      [action](DeviceTransport& transport, const Stream&) { action(transport); });
  }

  /** The same on memory of the CPU: action(Transport&). */
  template <class Action>
  Event run_on_cpu(TicketLock Impl::*order, const Stream& stream, const Action& action) {
    refuse_in_forked_child();
    refuse_if_broken();
    if (stream.device().kind != DeviceKind::cpu) {
      throw InvalidArgument("stream is a GPU's, but the call is about memory of the CPU");
    }
    if (stream.is_inline() || !transport_->any_thread()) {
      TicketLock::Place place(this->*order);
      perform(action, place);
      return {};
    }
    // In one step, or another thread could queue a later place in front of this one.
    const std::lock_guard lock(submitting_);
    const auto queued = std::allocate_shared<Queued>(RecyclingAllocator<Queued>(),
                                                     shared_from_this(), this->*order);
    return stream.submit(
        Recycled([queued, action] { queued->self->perform(action, queued->place); }));
  }

  /**
   * The same on memory of a GPU: action(DeviceTransport&, const Stream&) launches it. A GPU's
   * stream goes on by itself. On the CPU's streams the GPU's default stream comes first, and the
   * thread waits for the GPU.
   */
  template <class Action>
  Event run_on_gpu(TicketLock Impl::*order, Device device, const Stream& stream,
                   const Action& action) {
    refuse_in_forked_child();
    refuse_if_broken();
    if (stream.device().kind == DeviceKind::cuda) {
      if (stream.device() != device) {
        throw InvalidArgument("stream is of GPU " + std::to_string(stream.device().ordinal) +
                              ", but the memory is of GPU " + std::to_string(device.ordinal));
      }
      TicketLock::Place place(this->*order);
      place.wait();
      return launch(order, device, stream, action);
    }
    const Event before = Stream::borrow(device, nullptr).submit([] {});
    if (stream.is_inline()) {
      TicketLock::Place place(this->*order);
      perform_on_gpu(order, device, before, action, place);
      return {};
    }
    const std::lock_guard lock(submitting_);
    const auto queued = std::allocate_shared<Queued>(RecyclingAllocator<Queued>(),
                                                     shared_from_this(), this->*order);
    return stream.submit(Recycled([queued, order, device, before, action] {
      queued->self->perform_on_gpu(order, device, before, action, queued->place);
    }));
  }

  /** The same for a call that blocks. */
  template <class Action>
  void run_on_gpu(Device device, const Action& action) {
    run_on_gpu(&Impl::collectives_, device, own_stream(device), action).wait();
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

  void abort(std::string_view reason) noexcept {
    if (fork_guard_.in_child()) return;
    if (broken_) return;  // the other ranks learn what it failed for, not that this one gave up
    transport_->abort(reason);
    try {
      mark_broken(
          CommunicationError(std::string(kBroken) + "this rank gave up: " + std::string(reason)));
    } catch (const std::exception&) {  // out of memory
      broken_ = true;
      cancel_on_gpu();
    }
  }

  TicketLock collectives_;
  TicketLock sends_;
  TicketLock receives_;

 private:
  /** An operation on a worker stream, which may outlive the Communicator. */
  struct Queued {
    Queued(std::shared_ptr<Impl> self_in, TicketLock& order)
        : self(std::move(self_in)), place(order) {}
    std::shared_ptr<Impl> self;
    TicketLock::Place place;
  };

  template <class Action>
  void perform(const Action& action, TicketLock::Place& place) {
    place.wait();
    guarded([&] { action(*transport_); });
    place.leave();
  }

  /** Launches what comes after `before`, and waits for it. */
  template <class Action>
  void perform_on_gpu(TicketLock Impl::*order, Device device, const Event& before,
                      const Action& action, TicketLock::Place& place) {
    place.wait();
    const Stream& own = own_stream(device);
    own.wait(before);
    const Event done = launch(order, device, own, action);
    place.leave();
    guarded([&] { done.wait(); });  // who gives up in the middle is out of step
  }

  /** What a call on a failed communicator is told, before the reason, or after it. */
  static constexpr const char* kBroken =
      "the communicator is of no more use since an earlier call failed: ";
  static constexpr const char* kEarlier =
      " (found by an earlier call; the communicator is of no more use)";

  /** Launches on a stream of a GPU. NCCL wants the operations of a communicator one after the
   * other, so each stream waits for the one that was used before it. */
  template <class Action>
  Event launch(TicketLock Impl::*order, Device device, const Stream& stream, const Action& action) {
    const std::lock_guard lock(launching_);
    if (gpu() == nullptr && order != &Impl::collectives_) {
      throw InvalidArgument("a send or recv on memory of a GPU was called before any collective");
    }
    check_own_gpu(device, gpu() != nullptr ? gpu()->device() : stream.device());
    guarded([&] {
      if (!(last_stream_ == stream)) stream.wait(last_);
      last_ = stream.submit(
          [&] {
            if (gpu() == nullptr) adopt(connect_gpus(transport_.get(), stream.device()));
            gpu()->use_stream(stream.native());
            action(*gpu(), stream);
          },
          watch());
      last_stream_ = stream;
    });
    return last_;
  }

  static void check_own_gpu(Device device, Device own) {
    if (device == own) return;
    throw InvalidArgument("the memory is of GPU " + std::to_string(device.ordinal) +
                          ", but the communicator is on GPU " + std::to_string(own.ordinal));
  }

  /** What a wait for a GPU does meanwhile; it may outlive the communicator. */
  Stream::Watch watch() {
    return [weak = weak_from_this()](std::chrono::milliseconds waited) {
      const auto self = weak.lock();
      if (!self) return;
      self->guarded([&] {
        if (DeviceTransport* gpu = self->gpu()) gpu->poll();  // none where it could not be made
        self->transport_->pulse(waited);
      });
    };
  }

  const Stream& own_stream(Device device) {
    const std::lock_guard lock(launching_);
    if (own_stream_.is_inline()) own_stream_ = Stream::on(device);
    return own_stream_;
  }

  template <class Action>
  void guarded(const Action& action) {
    refuse_if_broken();
    try {
      action();
    } catch (const PeerLost& error) {
      mark_broken(PeerLost(error.ranks(), error.reason() + kEarlier));
      throw;
    } catch (const CommunicationError& error) {
      mark_broken(CommunicationError(std::string(kBroken) + error.what()));
      throw;
    } catch (const SystemError&) {
      throw;  // of allocate(): the same on all ranks, which can go on
    } catch (const BackendUnavailable&) {
      throw;  // of the first call on a GPU: likewise
    } catch (const std::exception& error) {
      // Half-way through, so this rank is out of step: the others must not wait for it.
      abort(error.what());
      throw;
    }
  }

  /** A child has the memory, but the group knows only its parent. */
  void refuse_in_forked_child() const {
    if (!fork_guard_.in_child()) return;
    throw CommunicationError(
        "the communicator belongs to the process that made it, not to a forked child");
  }

  void refuse_if_broken() {
    if (!broken_) return;
    const std::lock_guard lock(mutex_);
    if (refusal_) std::rethrow_exception(refusal_);
    throw CommunicationError(kBroken);
  }

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

  std::unique_ptr<Transport> transport_;
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
