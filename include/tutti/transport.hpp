// The interface that a backend implements to move bytes between ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tutti/call.hpp"
#include "tutti/device.hpp"
#include "tutti/error.hpp"

namespace tutti {

namespace record {
class Journal;
}

/**
 * Moves bytes of CPU memory between the ranks of one communicator. To implement one: run() does
 * what each Operation says, as Communicator documents it, for all that a Call can ask for but
 * allocate, split and group, which have functions of their own, since they return something. A
 * backend that cannot do an operation throws BackendUnavailable naming it, on all ranks alike,
 * before it moves anything.
 *
 * The arguments have been checked by the Communicator; `in` and `out` are either the same elements
 * (the operation's usual in-place form) or do not overlap. Called by all ranks in the same order,
 * by one thread at a time; one send and one recv may run beside them. What a call reads and writes
 * belongs to it until it returns: it blocks until this rank's part is done, at most until the
 * communicator's deadline.
 *
 * Nothing may be written before the ranks have shown each other that they ask for the same, or, in
 * a broadcast, before the root has shown it: Call::describe() is what a MismatchError shows of
 * each. Errors: PeerLost and MismatchError as described in error.hpp. After either the object is
 * only good for destruction.
 */
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  /** Whether `rank` is on the same host as this one. */
  virtual bool shares_host(int rank) const = 0;
  /** One line for the log: what carries the bytes, and between whom. */
  virtual std::string describe() const = 0;
  /** How long any wait may last. */
  virtual std::chrono::milliseconds timeout() const = 0;
  /** Whether operations may run on another thread than the one that calls the communicator. */
  virtual bool any_thread() const { return true; }

  /** Where this rank's calls are noted by who runs them, and its waits by the transport; null if it
   * has no such place. */
  virtual record::Journal* journal() { return nullptr; }

  /** What this rank's collectives have sent to ranks of other hosts so far, in bytes of their
   * messages. Any thread may ask. */
  virtual std::int64_t bytes_between() const { return 0; }

  /** Runs a collective, or one side of a message. */
  virtual void run(const Call& call) = 0;
  /** Collective: `bytes` bytes of zeros on every rank, mapped by all ranks of a host. */
  virtual Buffer allocate(std::int64_t bytes) = 0;
  /** Collective: a transport among the ranks of equal `color`, ordered by `key`, then by rank. */
  virtual std::unique_ptr<Transport> split(int color, int key) = 0;
  /** Collective over `ranks` alone: a transport among them, in this order. */
  virtual std::unique_ptr<Transport> group(std::span<const int> ranks) = 0;

  /**
   * For waits that are not the transport's own, for a GPU: called about every 50 ms, it shows the
   * other ranks that this one is alive. Throws what they have failed with, and PeerLost if one has
   * died; and once `waited`, the time that the wait has lasted, is beyond the deadline, PeerLost
   * naming the ranks that have stopped, or all others if none has.
   */
  virtual void pulse(std::chrono::milliseconds /*waited*/) {}
  /** The same, without a deadline, for waits that ranks which have left need not take part in:
   * these are not lost when their processes end. */
  virtual void look_after_present() { pulse({}); }

  /** Somebody else has found that the process of a rank has ended: tells the other ranks, and
   * throws what all of them throw. Returns if the rank had left before, as far as is known, or if
   * there is nobody to tell. */
  virtual void lose_ended(const PeerLost& /*ended*/) {}

  /** Tells the other ranks that this one takes part no longer. Waits for nobody. */
  virtual void abort(std::string_view reason) noexcept = 0;
};

/**
 * Moves bytes between GPUs: what Transport is for memory of the CPU. An operation returns when it
 * has been launched on the stream in use; who waits for it calls poll() meanwhile. The device is
 * current on the thread that calls. An all_to_all never comes in place; a sparse_all_reduce never
 * comes.
 */
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  virtual Device device() const = 0;
  /** One line for the log. */
  virtual std::string describe() const = 0;

  /** The stream (a cudaStream_t) that collectives are launched on from now on. */
  virtual void use_stream(void* stream) = 0;

  /** Launches a collective, or one side of a message. */
  virtual void run(const Call& call) = 0;
  /** Collective: `bytes` bytes, not initialised, that the GPUs' links reach. */
  virtual Buffer allocate(std::int64_t bytes) = 0;
  /**
   * Collective: the part of this transport among the ranks of equal `color`, in the order of
   * `key`; nothing for a negative color. `cpu_transport` moves CPU memory between the same ranks,
   * and outlives the part.
   */
  virtual std::unique_ptr<DeviceTransport> split(int color, int key, Transport* cpu_transport) = 0;

  /** Throws what an operation that was launched has failed with. Safe from any thread. */
  virtual void poll() = 0;
  /** Ends what is under way, so that its streams go on; poll() throws from then on. Waits for none
   * of that: as soon as an operation has ended on its stream, its arguments are not touched any
   * more. Safe from any thread. */
  virtual void cancel() noexcept = 0;
};

}  // namespace tutti
