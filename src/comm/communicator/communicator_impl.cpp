// Runs calls on streams of the CPU and of GPUs, and refuses what comes after a failure.
#include "comm/communicator/communicator_impl.hpp"

#include <optional>
#include <string>
#include <utility>

#include "base/recycled.hpp"
#include "comm/communicator/backends.hpp"
#include "device/cpu/kernel_table.hpp"

namespace tutti {
namespace {

/** What a call on a failed communicator is told, before the reason, or after it. */
constexpr const char* kBroken = "the communicator is of no more use since an earlier call failed: ";
constexpr const char* kEarlier = " (found by an earlier call; the communicator is of no more use)";

}  // namespace

struct Communicator::Impl::Queued {
  Queued(std::shared_ptr<Impl> self_in, const Call& call_in)
      : self(std::move(self_in)),
        call(call_in),
        counts(call_in.counts.begin(), call_in.counts.end()),
        arriving(call_in.arriving.begin(), call_in.arriving.end()),
        messages(call_in.messages.begin(), call_in.messages.end()),
        turn(*self, call_in) {
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

Communicator::Impl::Impl(std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)),
      journal_(transport_->journal()),
      shows_calls_(log_enabled(LogLevel::debug)) {
  if (journal_ != nullptr) journal_->count_waits(transport_->size());
  if (log_enabled(LogLevel::info) && transport_->rank() == 0) {
    const std::string kernels = cpu::name_of(cpu::active_isa());
    log(LogLevel::info, transport_->describe() + "; " + kernels + " kernels");
  }
}

template <class Run>
Event Communicator::Impl::queue(const Call& call, const Stream& stream, const Run& run) {
  // In one step, or another thread could queue a later place in front of this one.
  const std::lock_guard lock(submitting_);
  const auto queued =
      std::allocate_shared<Queued>(RecyclingAllocator<Queued>(), shared_from_this(), call);
  return stream.submit(Recycled([queued, run] { run(*queued); }));
}

Event Communicator::Impl::run(const Call& call, const Stream& stream) {
  refuse_in_forked_child();
  refuse_if_broken();
  if (call.device.kind != DeviceKind::cpu) return run_on_gpu(call, stream);
  if (stream.device().kind != DeviceKind::cpu) {
    throw InvalidArgument("stream is a GPU's, but the call is about memory of the CPU");
  }
  if (stream.is_inline() || !transport_->any_thread()) {
    Turn turn(*this, call);
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

/** A GPU's stream goes on by itself. On the CPU's streams the GPU's default stream comes first, and
 * the thread waits for the GPU. */
Event Communicator::Impl::run_on_gpu(const Call& call, const Stream& stream) {
  if (stream.device().kind == DeviceKind::cuda) {
    if (stream.device() != call.device) {
      throw InvalidArgument("stream is of GPU " + std::to_string(stream.device().ordinal) +
                            ", but the memory is of GPU " + std::to_string(call.device.ordinal));
    }
    Turn turn(*this, call);
    turn.wait();
    return launch(call, stream);
  }
  const Event before = Stream::borrow(call.device, nullptr).submit([] {});
  if (stream.is_inline()) {
    Turn turn(*this, call);
    perform_on_gpu(call, before, turn);
    return {};
  }
  return queue(call, stream, [before](Queued& queued) {
    queued.self->perform_on_gpu(queued.call, before, queued.turn);
  });
}

void Communicator::Impl::perform_on_gpu(const Call& call, const Event& before, Turn& turn) {
  turn.wait();
  const Stream& own = own_stream(call.device);
  own.wait(before);
  const Event done = launch(call, own);
  turn.leave();
  guarded([&] { done.wait(); });  // who gives up in the middle is out of step
}

Event Communicator::Impl::launch(const Call& call, const Stream& stream) {
  return launch(call, stream, [&call](DeviceTransport& transport, const Stream& on) {
    if (call.operation != Operation::all_to_all || call.in.data != call.out.data) {
      return transport.run(call);
    }
    // Between GPUs a block may arrive before the one in its place was sent.
    const Buffer copy = on.allocate(call.in.bytes());
    const View source = copy.view(call.in.dtype);
    on.copy(source, call.in);
    Call from_copy = call;
    from_copy.in = source;
    transport.run(from_copy);
  });
}

void Communicator::Impl::check_launch(const Call& call, const Stream& stream) const {
  if (gpu() == nullptr && call.is_message()) {
    throw InvalidArgument(std::string(name_of(call.operation)) +
                          " on memory of a GPU was called before any collective");
  }
  check_own_gpu(call.device, gpu() != nullptr ? gpu()->device() : stream.device());
}

DeviceTransport& Communicator::Impl::use_gpu(const Stream& stream) {
  if (gpu() == nullptr) adopt(connect_gpus(transport_.get(), stream.device()));
  gpu()->use_stream(stream.native());
  return *gpu();
}

void Communicator::Impl::check_own_gpu(Device device, Device own) {
  if (device == own) return;
  throw InvalidArgument("the memory is of GPU " + std::to_string(device.ordinal) +
                        ", but the communicator is on GPU " + std::to_string(own.ordinal));
}

Stream::Watch Communicator::Impl::watch() {
  return [weak = weak_from_this()](std::chrono::milliseconds waited) {
    const auto self = weak.lock();
    if (!self) return;
    self->guarded([&] {
      if (DeviceTransport* gpu = self->gpu()) gpu->poll();  // none where it could not be made
      self->transport_->pulse(waited);
    });
  };
}

const Stream& Communicator::Impl::own_stream(Device device) {
  const std::lock_guard lock(launching_);
  if (own_stream_.is_inline()) own_stream_ = Stream::on(device);
  return own_stream_;
}

void Communicator::Impl::abort(std::string_view reason) noexcept {
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
  if (broken_ || journal_ == nullptr || transport_->size() == 1) return;
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

void Communicator::Impl::refuse_if_broken() {
  if (!broken_) return;
  const std::lock_guard lock(mutex_);
  if (refusal_) std::rethrow_exception(refusal_);
  throw CommunicationError(kBroken);
}

}  // namespace tutti
