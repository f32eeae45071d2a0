// Checks arguments once, orders the operations, and forwards them to the transport.
#include "tutti/communicator.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "communicator/arguments.hpp"
#include "communicator/backends.hpp"
#include "communicator/birthplace.hpp"
#include "communicator/cpu/kernel_table.hpp"
#include "communicator/environment.hpp"
#include "communicator/log.hpp"
#include "communicator/recycled.hpp"
#include "communicator/turnstile.hpp"

namespace tutti {
namespace {

std::unique_ptr<Transport> connect(int local_rank, int world_size, const UniqueId& id,
                                   const CommOptions& options) {
  if (world_size < 1) {
    throw InvalidArgument("world_size is " + std::to_string(world_size) + ", but must be positive");
  }
  check_rank("local_rank", local_rank, world_size);
  return connect_local(local_rank, world_size, id, timeout_or_default(options.timeout));
}

/** What a call on a failed communicator is told, before the reason, or after it. */
constexpr const char* kBroken = "the communicator is of no more use since an earlier call failed: ";
constexpr const char* kEarlier = " (found by an earlier call; the communicator is of no more use)";

}  // namespace

Reduce Reduce::premul_sum(double factor) {
  Reduce reduce(ReduceKind::premul_sum);
  reduce.factor = factor;
  return reduce;
}

/** Shared with operations that are still on a stream, which may outlive the Communicator. */
class Communicator::Impl : public std::enable_shared_from_this<Communicator::Impl> {
 public:
  explicit Impl(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
    const std::string kernels = cpu::name_of(cpu::active_isa());   // a wrong TUTTI_ISA ends here
    if (log_enabled(LogLevel::info) && transport_->rank() == 0) {  // and a wrong TUTTI_LOG
      log(LogLevel::info, transport_->describe() + "; " + kernels + " kernels");
    }
  }

  const Transport& transport() const { return *transport_; }

  /** Runs a collective, or one side of a message, on a stream when its turn has come. */
  template <class Action>
  Event run(Turnstile Impl::*order, const Stream& stream, Action action) {
    refuse_in_forked_child();
    refuse_if_broken();
    if (stream.is_inline() || !transport_->any_thread()) {
      Turnstile::Place place(this->*order);
      perform(action, place);
      return {};
    }
    // In one step, or another thread could queue a later place in front of this one.
    const std::lock_guard lock(submitting_);
    const auto queued = std::allocate_shared<Queued>(RecyclingAllocator<Queued>(),
                                                     shared_from_this(), this->*order);
    return stream.submit(Recycled(
        [queued, action = std::move(action)] { queued->self->perform(action, queued->place); }));
  }

  void abort(std::string_view reason) noexcept {
    if (birthplace_.left()) return;
    if (broken_) return;  // the other ranks learn what it failed for, not that this one gave up
    transport_->abort(reason);
    try {
      mark_broken(
          CommunicationError(std::string(kBroken) + "this rank gave up: " + std::string(reason)));
    } catch (const std::exception&) {  // out of memory
      broken_ = true;
    }
  }

  Turnstile collectives_;
  Turnstile sends_;
  Turnstile receives_;

 private:
  /** An operation on a worker stream, which may outlive the Communicator. */
  struct Queued {
    Queued(std::shared_ptr<Impl> self_in, Turnstile& order)
        : self(std::move(self_in)), place(order) {}
    std::shared_ptr<Impl> self;
    Turnstile::Place place;
  };

  template <class Action>
  void perform(const Action& action, Turnstile::Place& place) {
    place.wait();
    guarded(action);
    place.leave();
  }

  template <class Action>
  void guarded(const Action& action) {
    refuse_if_broken();
    try {
      action(*transport_);
    } catch (const PeerLost& error) {
      mark_broken(PeerLost(error.ranks(), error.reason() + kEarlier));
      throw;
    } catch (const CommunicationError& error) {
      mark_broken(CommunicationError(std::string(kBroken) + error.what()));
      throw;
    } catch (const SystemError&) {
      throw;  // of allocate(): the same on all ranks, which can go on
    } catch (const std::exception& error) {
      // Half-way through, so this rank is out of step: the others must not wait for it.
      abort(error.what());
      throw;
    }
  }

  /** A child has the memory, but the group knows only its parent. */
  void refuse_in_forked_child() const {
    if (!birthplace_.left()) return;
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
    if (!broken_.exchange(true)) refusal_ = std::make_exception_ptr(refusal);
  }

  std::unique_ptr<Transport> transport_;
  const Birthplace birthplace_;
  std::mutex submitting_;
  std::atomic<bool> broken_ = false;
  std::mutex mutex_;
  std::exception_ptr refusal_;
};

Communicator::Communicator(const CommOptions& options)
    : Communicator(connect_mpi_world(timeout_or_default(options.timeout))) {}

Communicator::Communicator(int local_rank, int world_size, const UniqueId& id,
                           const CommOptions& options)
    : Communicator(connect(local_rank, world_size, id, options)) {}

Communicator::Communicator(std::unique_ptr<Transport> transport)
    : impl_(std::make_shared<Impl>(std::move(transport))) {}

Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

int Communicator::global_rank() const { return impl_->transport().rank(); }
int Communicator::world_size() const { return impl_->transport().size(); }
int Communicator::local_rank() const { return impl_->transport().local_rank(); }
int Communicator::local_size() const { return impl_->transport().local_size(); }
std::string Communicator::describe() const { return impl_->transport().describe(); }

Event Communicator::all_reduce(ConstView in, View out, Reduce reduce, const Stream& stream) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_count("out", out, in.count, "as many as in");
  check_reduce(reduce, in.dtype);
  check_overlap(in, out, 0);
  return impl_->run(&Impl::collectives_, stream,
                    [=](Transport& transport) { transport.all_reduce(in, out, reduce); });
}

Event Communicator::all_reduce(View inout, Reduce reduce, const Stream& stream) {
  return all_reduce(inout, inout, reduce, stream);
}

Event Communicator::reduce(ConstView in, View out, int root, Reduce reduce, const Stream& stream) {
  check_view("in", in);
  check_rank("root", root, world_size());
  check_reduce(reduce, in.dtype);
  if (global_rank() == root) {
    check_view("out", out);
    check_same_dtype(in, out);
    check_count("out", out, in.count, "as many as in");
    check_overlap(in, out, 0);
  }
  return impl_->run(&Impl::collectives_, stream,
                    [=](Transport& transport) { transport.reduce(in, out, reduce, root); });
}

Event Communicator::broadcast(ConstView in, View out, int root, const Stream& stream) {
  check_rank("root", root, world_size());
  check_view("out", out);
  check_same_dtype(in, out);
  check_count("out", out, in.count, "as many as in");
  if (global_rank() == root) {
    check_view("in", in);
    check_overlap(in, out, 0);
  }
  return impl_->run(&Impl::collectives_, stream,
                    [=](Transport& transport) { transport.broadcast(in, out, root); });
}

Event Communicator::broadcast(View inout, int root, const Stream& stream) {
  return broadcast(inout, inout, root, stream);
}

Event Communicator::all_gather(ConstView in, View out, const Stream& stream) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_count("out", out, in.count * world_size(), "world_size times in.count");
  check_overlap(in, out, in.count * global_rank());
  return impl_->run(&Impl::collectives_, stream,
                    [=](Transport& transport) { transport.all_gather(in, out); });
}

Event Communicator::all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts,
                                 const Stream& stream) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  const auto rank = static_cast<std::size_t>(global_rank());
  if (counts.size() != static_cast<std::size_t>(world_size())) {
    throw InvalidArgument("counts has " + std::to_string(counts.size()) +
                          " elements, but there are " + std::to_string(world_size()) + " ranks");
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    check_count_range("counts[" + std::to_string(i) + "]", counts[i]);
  }
  check_count("in", in, counts[rank], "counts[global_rank]");
  check_count("out", out, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
              "the sum of counts");
  check_overlap(in, out,
                std::accumulate(counts.begin(), counts.begin() + global_rank(), std::int64_t{0}));
  return impl_->run(&Impl::collectives_, stream,
                    [=, own = std::vector<std::int64_t>(counts.begin(), counts.end())](
                        Transport& transport) { transport.all_gather_v(in, out, own); });
}

Event Communicator::reduce_scatter(ConstView in, View out, Reduce reduce, const Stream& stream) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_count("in", in, out.count * world_size(), "world_size times out.count");
  check_reduce(reduce, in.dtype);
  check_overlap(in, out, out.count * global_rank());
  return impl_->run(&Impl::collectives_, stream,
                    [=](Transport& transport) { transport.reduce_scatter(in, out, reduce); });
}

Event Communicator::all_to_all(ConstView in, View out, const Stream& stream) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_count("out", out, in.count, "as many as in");
  if (in.count % world_size() != 0) {
    throw InvalidArgument("in.count is " + std::to_string(in.count) +
                          ", but must be a multiple of world_size, which is " +
                          std::to_string(world_size()));
  }
  check_overlap(in, out, 0);
  return impl_->run(&Impl::collectives_, stream,
                    [=](Transport& transport) { transport.all_to_all(in, out); });
}

Event Communicator::sparse_all_reduce(SparseView in, View out, Reduce reduce, const Stream& stream,
                                      SparseStats* stats) {
  check_view("out", out);
  check_dtype("out", out, DType::f32);
  check_sparse_reduce(reduce);
  check_sparse(in, out);
  return impl_->run(&Impl::collectives_, stream, [=](Transport& transport) {
    const SparseStats done = transport.sparse_all_reduce(in, out, reduce);
    if (stats != nullptr) *stats = done;
  });
}

Event Communicator::barrier(const Stream& stream) {
  return impl_->run(&Impl::collectives_, stream, [](Transport& transport) { transport.barrier(); });
}

Event Communicator::send(ConstView in, int destination, const Stream& stream) {
  check_view("in", in);
  check_rank("destination", destination, world_size());
  return impl_->run(&Impl::sends_, stream,
                    [=](Transport& transport) { transport.send(in, destination); });
}

Event Communicator::recv(View out, int source, const Stream& stream) {
  check_view("out", out);
  check_rank("source", source, world_size());
  return impl_->run(&Impl::receives_, stream,
                    [=](Transport& transport) { transport.recv(out, source); });
}

Buffer Communicator::allocate(std::int64_t bytes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 46;  // no address space holds more
  if (bytes < 0 || bytes > kMost) {
    throw InvalidArgument("bytes is " + std::to_string(bytes) + ", but must be from 0 to 2^46");
  }
  Buffer buffer;
  impl_->run(&Impl::collectives_, {},
             [&](Transport& transport) { buffer = transport.allocate(bytes); });
  return buffer;
}

std::optional<Communicator> Communicator::split(int color, int key) {
  std::unique_ptr<Transport> part;
  impl_->run(&Impl::collectives_, {},
             [&](Transport& transport) { part = transport.split(color, key); });
  if (!part) return std::nullopt;
  return Communicator(std::move(part));
}

void Communicator::abort(std::string_view reason) noexcept { impl_->abort(reason); }

}  // namespace tutti
