// The communicator: what users call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/dtype.hpp"
#include "tutti/error.hpp"
#include "tutti/message.hpp"
#include "tutti/sparse.hpp"
#include "tutti/transport.hpp"
#include "tutti/unique_id.hpp"

namespace tutti {

class Communicator;
namespace record {
class Trace;
/** Where what is done with `communicator` is noted; null if it has no timeline. */
Trace* trace_of(const Communicator& communicator);
}  // namespace record

struct CommOptions {
  /**
   * How long any wait may last before the ranks waited for count as lost. Unset: TUTTI_TIMEOUT
   * (in seconds), or else 300 s.
   */
  std::optional<std::chrono::milliseconds> timeout;
};

/**
 * A group of ranks that call collectives together.
 *
 * All collectives are called by all ranks in the same order with matching arguments; if they are
 * not, every rank gets a MismatchError that shows both sides, before any output is written (but see
 * broadcast() and reduce()). They run on a Stream: on the default one they are blocking, on a
 * worker they return at once, and the memory of their arguments belongs to them until the returned
 * Event is ready. Operations of one communicator run one after the other in the order of the calls,
 * whatever their streams; a send and a recv may overlap with them and with each other.
 *
 * `in` and `out` may be the same memory (for gathers, `in` is this rank's part of `out`; for
 * scatters, `out` is this rank's part of `in`; all_to_all_v has them apart); any other overlap is
 * refused. Counts are in elements. What ends in _v takes blocks of different length, one a rank, in
 * the order of the ranks; all ranks pass the same `counts`.
 *
 * Memory of GPUs travels through NCCL: all ranks pass it in a call, or none does, and a rank always
 * of the same GPU. On a GPU's stream a call launches its work and returns. The order of additions
 * is NCCL's own; a send and a recv run one after the other. Reductions that NCCL lacks are refused:
 * all of 16-bit integers, bitwise and logical ones of integers, and exclusive or of booleans. Calls
 * that do not match are found out while TUTTI_GPU_CHECK lasts, and later end in PeerLost. The first
 * such call, a collective, connects the GPUs; BackendUnavailable, on all ranks, where that cannot
 * be.
 *
 * The order in which contributions are added depends only on the layout (which ranks share a
 * host), the count and the dtype: rank order inside a host, then the hosts by their lowest rank
 * (more than 32: see docs/design.md), in a scan rank order. All ranks and runs get the same bits.
 *
 * Errors: InvalidArgument before anything is sent; PeerLost and MismatchError (error.hpp), after
 * which every call throws CommunicationError. The arguments of a call that ended in PeerLost
 * between hosts should not be freed while the process goes on calling MPI: MPI cannot be told to
 * forget them. Calls are safe from several threads, as long as all ranks order their collectives
 * alike; between hosts only where MPI was initialised with MPI_THREAD_MULTIPLE (mpi.hpp).
 */
class Communicator {
 public:
  /**
   * Joins all ranks that a launcher has started: `tutti run`, mpiexec, torchrun, srun, or what
   * names trainers by their endpoints as Paddle does; launch.hpp says how it is told which.
   * Collective over them: the n-th such communicator of each rank is one. A process that nothing
   * has launched is a rank alone, of MPI.
   *
   * Where MPI brings the ranks together, initialises it if nobody has, and then finalises it when
   * the process ends, unless a rank was lost, so that mpiexec ends the job; MPI that somebody else
   * initialised stays theirs. For a communicator of your own, see mpi.hpp.
   *
   * Throws what the next constructor throws; InvalidArgument if launchers' variables contradict
   * each other, if the ranks are on several hosts and MPI has not started them, or if MPI knows of
   * another number of processes than a launcher has started; and, as all constructors do, on every
   * rank if TUTTI_GPU_CHECK differs.
   */
  explicit Communicator(const CommOptions& options = {});
  /**
   * Joins `world_size` ranks of this host, processes or threads, that hold the same ticket. MPI
   * is not touched. Throws InvalidArgument if the ticket has been used for another communicator, if
   * another rank came with the same `local_rank` or another `world_size`; PeerLost naming the ranks
   * that did not come before the deadline; SystemError if shared memory is short.
   */
  Communicator(int local_rank, int world_size, const UniqueId& id, const CommOptions& options = {});
  /** Takes over a transport; how split() and mpi.hpp make communicators. */
  explicit Communicator(std::unique_ptr<Transport> transport);

  /** One that was moved from can be assigned to and destroyed; all else but abort() throws
   * CommunicationError, or InvalidArgument of what is wrong by itself. */
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /**
   * Does not wait for the other ranks; what they still read stays mapped. Never throws. Where an
   * exception is on its way through the communicator's scope, the other ranks are told so as by
   * abort(), but not its text: who catches it further up calls abort() with that before.
   */
  ~Communicator();

  /** This rank's number, from 0 to world_size() - 1, and how many ranks the communicator has. */
  int global_rank() const;
  int world_size() const;
  /** The rank among those of this host, and how many those are. */
  int local_rank() const;
  int local_size() const;
  /**
   * Where this rank should compute: the GPU number local_rank() modulo gpu_count(), or the CPU if
   * there is no GPU. TUTTI_DEVICE (`cpu`, or a GPU's number) overrides it.
   */
  Device device() const;
  /**
   * Throws InvalidArgument where collectives refuse memory of `device`: that of another GPU than
   * the first on whose memory one was called. Local; for callers that change something before.
   */
  void check_device(Device device) const;
  /**
   * From now on, a wait for what `stream` of a GPU is given looks after the other ranks, and has
   * the deadline, as if it were for a collective: for streams whose work waits for one in a way
   * that tutti cannot see. Local.
   */
  void watch(const Stream& stream);
  /** One line: what carries the bytes, and between whom. */
  std::string describe() const;
  /**
   * What this rank's collectives have sent to ranks of other hosts so far, in bytes of messages:
   * data and what the ranks agree on before, without what MPI adds. What travels through NCCL is
   * not counted. Local; any thread may ask.
   */
  std::int64_t bytes_between() const;

  /** out[i] = the reduction of in[i] over all ranks. `in` and `out` have the same count. */
  Event all_reduce(ConstView in, View out, Reduce reduce = {}, const Stream& stream = {});
  /** In place. */
  Event all_reduce(View inout, Reduce reduce = {}, const Stream& stream = {});
  /** As all_reduce, but only `root` gets the result; elsewhere `out` is not looked at. Between up
   * to 8 hosts a short one goes one way (up to 128 KiB between two; between more, up to 128 KiB of
   * all but the root together on a fast wire, 32 on others): who only gives waits at most for ranks
   * of its own host, and may have returned when another rank finds that it asks for something else.
   * It gets the MismatchError in a later call: in the next one that waits at the latest. */
  Event reduce(ConstView in, View out, int root, Reduce reduce = {}, const Stream& stream = {});
  /**
   * out[i] = the reduction of in[i] over the ranks up to this one, itself included, in rank order,
   * and rounded once. Not the average. Not between GPUs: BackendUnavailable.
   */
  Event scan(ConstView in, View out, Reduce reduce = {}, const Stream& stream = {});
  /** The same without this rank's own: `out` of rank 0, before which there is none, is left as it
   * is. */
  Event exscan(ConstView in, View out, Reduce reduce = {}, const Stream& stream = {});
  /** out = `root`'s `in`; elsewhere only the count and dtype of `in` are looked at. Between hosts a
   * short one (up to 64 KiB; 128 KiB between two hosts, 3.6 KiB with more than 8) waits for nobody
   * but the root, which waits for nobody. So ranks that ask for the same as the root may have
   * returned when another one finds that it does not: they get the MismatchError in their next
   * call. If two ranks take themselves for the root, others may return parts of both roots. */
  Event broadcast(ConstView in, View out, int root, const Stream& stream = {});
  /** In place. */
  Event broadcast(View inout, int root, const Stream& stream = {});
  /** `root`'s out = the `in` of rank 0, of rank 1, ...: world_size times in.count elements.
   * Elsewhere `out` is not looked at. */
  Event gather(ConstView in, View out, int root, const Stream& stream = {});
  /** The same where rank r contributes counts[r] elements. */
  Event gather_v(ConstView in, View out, std::span<const std::int64_t> counts, int root,
                 const Stream& stream = {});
  /** out = this rank's part of `root`'s `in`, which is world_size times as long. Elsewhere `in` is
   * not looked at. */
  Event scatter(ConstView in, View out, int root, const Stream& stream = {});
  /** The same where rank r gets counts[r] elements. */
  Event scatter_v(ConstView in, View out, std::span<const std::int64_t> counts, int root,
                  const Stream& stream = {});
  /** out = the `in` of rank 0, of rank 1, ...: world_size times in.count elements. */
  Event all_gather(ConstView in, View out, const Stream& stream = {});
  /** The same where rank r contributes counts[r] elements. */
  Event all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts,
                     const Stream& stream = {});
  /** out = this rank's part of the reduction of `in`, which is world_size times as long. */
  Event reduce_scatter(ConstView in, View out, Reduce reduce = {}, const Stream& stream = {});
  /** The same where rank r gets counts[r] elements. */
  Event reduce_scatter_v(ConstView in, View out, std::span<const std::int64_t> counts,
                         Reduce reduce = {}, const Stream& stream = {});
  /** Part r of `out` = part number global_rank() of rank r's `in`. Both have the same count. */
  Event all_to_all(ConstView in, View out, const Stream& stream = {});
  /** The same where leaving[r] elements go to rank r, and arriving[r] come from it. Ranks that
   * expect something else than what is sent get a MismatchError. */
  Event all_to_all_v(ConstView in, std::span<const std::int64_t> leaving, View out,
                     std::span<const std::int64_t> arriving, const Stream& stream = {});
  /**
   * out[i] = the sum, or the average, of what the ranks have at index i; zero where none has
   * anything. `out` is f32 and has the same count, at most kMostSparse, on all ranks; how many
   * elements `in` holds may differ. Inside a host the ranks' elements are added up first, so that
   * every host sends one packet; what travels between hosts then is decided alike on all of them,
   * or by TUTTI_SPARSE (gather, split or dense) of rank 0, and does not change a bit of the result.
   * `stats`, if not null, is written when the event is ready.
   */
  Event sparse_all_reduce(SparseView in, View out, Reduce reduce = {}, const Stream& stream = {},
                          SparseStats* stats = nullptr);
  /** Returns (its event is ready) once all ranks have called it. */
  Event barrier(const Stream& stream = {});

  /**
   * Sends to one rank. Done when the receiver has taken the data, however short they are: two ranks
   * that send to each other before they receive wait for each other, and call exchange() instead.
   * `tag`, not negative, says which recv takes the message; between GPUs it is 0. Sends of one rank
   * run one after the other, and so do its recvs: a send to a rank whose recv from here asks for
   * another tag gets a MismatchError, as that recv does. To itself, in host memory: a recv must run
   * beside it, on a stream or another thread, or the deadline ends it with a CommunicationError; so
   * it does a recv from itself.
   */
  Event send(ConstView in, int destination, std::int32_t tag = 0, const Stream& stream = {});
  /**
   * Receives what `source` sends with `tag`; count and dtype must be the same on both sides.
   * kAnySource takes the message of whichever rank sends first, of several in turns; kAnyTag takes
   * any tag. `received`, if not null, says what came when the event is ready.
   *
   * From any source nobody is to blame for not sending: at the deadline the call throws PeerLost if
   * ranks have died or left, which it does at once if all others have (between hosts, as far as it
   * is known), and otherwise CommunicationError, which says from whom nothing came. Between GPUs
   * InvalidArgument: NCCL receives from a given rank.
   */
  Event recv(View out, int source, std::int32_t tag = 0, const Stream& stream = {},
             Received* received = nullptr);
  /**
   * Sends and receives, all at once: done when all of it is, whatever the order in which the other
   * ranks come to their sides of it, in calls of exchange(), send() or recv(). To itself a rank may
   * send as well. Messages from one rank to another with the same tag keep their order; a recv
   * passes over those with other tags. What is received overlaps with nothing else. Takes the turns
   * of a send and of a recv. Between GPUs it is a group of NCCL's, where the messages of two ranks
   * are matched by their order alone.
   */
  Event exchange(std::span<const Message> messages, const Stream& stream = {});

  /**
   * Symmetric memory: `bytes` bytes of zeros, the same number on every rank. Collective and
   * blocking. Collectives whose arguments lie in one such allocation on all ranks are zero-copy
   * inside a host; on a GPU it is memory of NCCL's, registered with it. Throws SystemError on every
   * rank if the ranks of a host need more together than /dev/shm or the machine have.
   */
  Buffer allocate(std::int64_t bytes, Device device = {});

  /**
   * A communicator among the ranks that pass the same `color`, ordered by `key`, then by global
   * rank. Collective and blocking. Nothing for a negative color. Over several hosts, one thread
   * splits at a time, whatever the communicator.
   */
  std::optional<Communicator> split(int color, int key);
  /**
   * A communicator among `ranks` alone, in this order: the first of them is its rank 0. Collective
   * over them and blocking; the others take no part, and need not know. Any two ranks make the
   * groups that both are in in the same order. Takes the turns of a collective, a send and a recv.
   * Between GPUs the group connects anew, with the first collective on their memory. Over several
   * hosts, one thread makes groups or splits at a time.
   *
   * Errors: InvalidArgument if this rank is not one of them. MismatchError showing both lists, at
   * once, where another member comes with another list. PeerLost naming those that did not come
   * before the deadline; which say that they wait for each other, if ranks make groups in different
   * orders, each waiting for the next.
   */
  Communicator group(std::span<const int> ranks);

  /**
   * Who keeps the others waiting: for each rank the seconds that the others have waited for it to
   * come to collectives so far, on average over them. A wait counts for the rank that came last.
   * Waits of less than about a microsecond are not counted. Collective and blocking.
   */
  std::vector<double> lateness();

  /**
   * Gives up: the other ranks get PeerLost naming this one with `reason`, now or at their next
   * call. Further calls here are refused. Between hosts it may take a quarter of a second.
   */
  void abort(std::string_view reason) noexcept;

 private:
  friend class Store;
  friend class Timeline;
  friend record::Trace* record::trace_of(const Communicator& communicator);

  class Impl;
  explicit Communicator(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl>& impl() const {
    if (!impl_) refuse_since_moved_from();
    return impl_;
  }
  [[noreturn]] static void refuse_since_moved_from();

  std::shared_ptr<Impl> impl_;
};

}  // namespace tutti
