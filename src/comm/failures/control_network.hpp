// What carries control messages: all that finding out about failures asks of a network.
#pragma once

#include <functional>
#include <memory>

#include "comm/failures/control_message.hpp"

namespace tutti {

class WaitGraph;

/** Sends and receives the control messages of one tag. None of the calls blocks. Not thread-safe.
 */
class Messenger {
 public:
  virtual ~Messenger() = default;
  /** A message that the network refuses is as good as one that nobody answers. */
  virtual void send(const ControlMessage& message, int destination) = 0;
  /** Drops the messages that have left. */
  virtual void flush() noexcept = 0;
  /** Whether a message to a rank of which is_meant(rank) has not left. */
  virtual bool is_sending(const std::function<bool(int rank)>& is_meant) const = 0;
  /** handle(message, source) for all that have come. */
  virtual void receive(
      const std::function<void(const ControlMessage& message, int source)>& handle) = 0;
};

/**
 * The ranks of a session, as one of them sees them. MPI is one implementation (mpi::Session), the
 * simulation another.
 */
class ControlNetwork {
 public:
  virtual ~ControlNetwork() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /** For messages of `tag`, which go with it. */
  virtual std::unique_ptr<Messenger> messenger(int tag) = 0;
  /** Whom this process waits for, over this network and others. */
  virtual WaitGraph& wait_graph() = 0;

  /** After the loss of a rank: what is under way is left alone. */
  virtual void fail() noexcept = 0;
  /** After an error that all ranks have survived, likewise. */
  virtual void keep() noexcept = 0;
  virtual bool has_failed() const noexcept = 0;
  /** The process of `rank` has ended: it is sent nothing more. From any thread. */
  virtual void note_ended(int rank) = 0;
  /** Whether messages can be sent and received at all. */
  virtual bool may_call() const noexcept = 0;
  /** And whether this thread may. */
  virtual bool this_thread_may_call() const noexcept = 0;
};

}  // namespace tutti
