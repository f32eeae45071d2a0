// Runs calls on streams of the CPU and of GPUs, and refuses what comes after a failure.
#include "comm/communicator/communicator_impl.hpp"

#include <optional>
#include <string>
#include <utility>

#include "base/misspelt.hpp"
#include "device/cpu/kernel_table.hpp"

namespace tutti {
namespace {

/** What a call on a failed communicator is told, before the reason, or after it. */
constexpr const char* kBroken = "the communicator is of no more use since an earlier call failed: ";
constexpr const char* kEarlier = " (found by an earlier call; the communicator is of no more use)";

}  // namespace

Communicator::Impl::Impl(std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)),
      journal_(transport_->journal()),
      shows_calls_(log_enabled(LogLevel::debug)) {
  if (journal_ != nullptr) journal_->count_waits(transport_->size());
  warn_of_misspelt_variables(transport_->local_rank() == 0);
  if (log_enabled(LogLevel::info) && transport_->rank() == 0) {
    const std::string kernels = cpu::name_of(cpu::active_isa());
    log(LogLevel::info, transport_->describe() + "; " + kernels + " kernels");
  }
}

Event Communicator::Impl::run(const Call& call, const Stream& stream) {
  refuse_in_forked_child();
  health_->refuse_if_broken();
  if (call.device.kind != DeviceKind::cpu) return run_on_gpu(call, stream);
  if (stream.device().kind != DeviceKind::cpu) {
    throw InvalidArgument("stream is a GPU's, but the call is about memory of the CPU");
  }
  if (stream.is_inline() || !transport_->any_thread()) {
    Turn turn(turns_, call);
    turn.wait();
    execute(call, [&] { transport_->run(call); });
    return {};
  }
  return queue(call, stream, [](Queued& queued) {
    queued.turn.wait();
    queued.self->execute(queued.call, [&] { queued.self->transport_->run(queued.call); });
    queued.turn.leave();
  });
}

void Communicator::Impl::abort(std::string_view reason) noexcept {
  if (fork_guard_.in_child()) return;
  if (health_->is_broken())
    return;  // the other ranks learn what it failed for, not that this one gave up
  transport_->abort(reason);
  try {
    mark_broken(
        CommunicationError(std::string(kBroken) + "this rank gave up: " + std::string(reason)));
  } catch (const std::exception&) {  // out of memory
    if (health_->break_silently()) cancel_on_gpu();
  }
}

void Communicator::Impl::note_failure() {
  try {
    throw;
  } catch (const PeerLost& error) {
    tell_flight(error);
    mark_broken(PeerLost(error.ranks(), error.reason() + kEarlier));
  } catch (const CommunicationError& error) {
    tell_flight(error);
    mark_broken(CommunicationError(std::string(kBroken) + error.what()));
  } catch (const SystemError&) {         // of allocate(): the same on all ranks, which can go on
  } catch (const BackendUnavailable&) {  // of the first call on a GPU: the same on all ranks
  } catch (const std::exception& error) {
    // Half-way through, so this rank is out of step: the others must not wait for it.
    abort(error.what());
  }
}

void Communicator::Impl::tell_flight(const std::exception& error) noexcept {
  if (health_->is_broken() || journal_ == nullptr || transport_->size() == 1) return;
  try {
    if (record::Trace* const trace = this->trace()) trace->flush();
    std::optional<record::Flight> flight = journal_->neighbours().claim_flight();
    if (!flight) return;
    flight->reason = error.what();
    flight->communicator = transport_->describe();
    flight->world_size = transport_->size();
    record::tell_flight(*flight, transport_->rank());
  } catch (const std::exception& untold) {  // out of memory
    log(LogLevel::warn, untold.what());
  }
}

void Communicator::Impl::add_trace(std::shared_ptr<record::Trace> trace) {
  if (!trace || journal_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  journal_->set_trace(trace.get());
  traces_.push_back(std::move(trace));
}

void Communicator::Impl::share_trace(const Impl& other) {
  if (!other.traces_.empty()) add_trace(other.traces_.back());
}

/** A child has the memory, but the group knows only its parent. */
void Communicator::Impl::refuse_in_forked_child() const {
  if (!fork_guard_.in_child()) return;
  throw CommunicationError(
      "the communicator belongs to the process that made it, not to a forked child");
}

}  // namespace tutti
