// The interface that a backend implements to move bytes between ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/dtype.hpp"
#include "tutti/reduce.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

/**
 * The collectives of one communicator. Arguments have been checked by the Communicator; `in` and
 * `out` are either the same elements (the collective's usual in-place form) or do not overlap.
 * Called by all ranks in the same order, by one thread at a time; one send and one recv may run
 * beside them.
 *
 * Errors: PeerLost and MismatchError as described in error.hpp. After either the object is only
 * good for destruction.
 */
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual void all_reduce(ConstView in, View out, Reduce reduce) = 0;
  virtual void reduce(ConstView in, View out, Reduce reduce, int root) = 0;
  virtual void broadcast(ConstView in, View out, int root) = 0;
  virtual void all_gather(ConstView in, View out) = 0;
  virtual void all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts) = 0;
  virtual void reduce_scatter(ConstView in, View out, Reduce reduce) = 0;
  virtual void all_to_all(ConstView in, View out) = 0;
  virtual void barrier() = 0;

  virtual void send(ConstView in, int destination) = 0;
  virtual void recv(View out, int source) = 0;
};

/**
 * Moves bytes of CPU memory between the ranks of one communicator. Every call blocks until this
 * rank's part is done, at most until the communicator's deadline.
 */
class Transport : public Collectives {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  /** One line for the log: what carries the bytes, and between whom. */
  virtual std::string describe() const = 0;
  /** Whether operations may run on another thread than the one that calls the communicator. */
  virtual bool any_thread() const { return true; }

  /** What this rank's collectives have sent to ranks of other hosts so far, in bytes of their
   * messages. Any thread may ask. */
  virtual std::int64_t bytes_between() const { return 0; }

  /** A collective; `reduce` is the sum or the average. */
  virtual SparseStats sparse_all_reduce(const SparseView& in, View out, Reduce reduce) = 0;

  /** Collective: `bytes` bytes of zeros on every rank, mapped by all ranks of a host. */
  virtual Buffer allocate(std::int64_t bytes) = 0;
  /** Collective: a transport among the ranks of equal `color`, ordered by `key`, then by rank. */
  virtual std::unique_ptr<Transport> split(int color, int key) = 0;

  /**
   * For waits that are not the transport's own, for a GPU: called about every 50 ms, it shows the
   * other ranks that this one is alive. Throws what they have failed with, and PeerLost if one has
   * died; and once `waited`, the time that the wait has lasted, is beyond the deadline, PeerLost
   * naming the ranks that have stopped, or all others if none has.
   */
  virtual void pulse(std::chrono::milliseconds /*waited*/) {}

  /** Tells the other ranks that this one takes part no longer. Waits for nobody. */
  virtual void abort(std::string_view reason) noexcept = 0;
};

/**
 * Moves bytes between GPUs. A collective returns when it has been launched on the stream in use;
 * who waits for it calls poll() meanwhile. The device is current on the thread that calls.
 */
class DeviceTransport : public Collectives {
 public:
  virtual Device device() const = 0;
  /** One line for the log. */
  virtual std::string describe() const = 0;

  /** The stream (a cudaStream_t) that collectives are launched on from now on. */
  virtual void use_stream(void* stream) = 0;

  /** Collective: `bytes` bytes, not initialised, that the GPUs' links reach. */
  virtual Buffer allocate(std::int64_t bytes) = 0;
  /**
   * Collective: the part of this transport among the ranks of equal `color`, in the order of
   * `key`; nothing for a negative color. `host` moves CPU memory between the same ranks, and
   * outlives the part.
   */
  virtual std::unique_ptr<DeviceTransport> split(int color, int key, Transport* host) = 0;

  /** Throws what an operation that was launched has failed with. Safe from any thread. */
  virtual void poll() = 0;
  /** Ends what is under way, so that its streams go on. Once it returns, memory of its arguments
   * is not touched any more. Safe from any thread. */
  virtual void cancel() noexcept = 0;
};

}  // namespace tutti
