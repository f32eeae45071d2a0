// Control messages over MPI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <list>
#include <memory>

#include "base/recycled.hpp"
#include "comm/failures/control_network.hpp"
#include "comm/mpi/session.hpp"

namespace tutti::mpi {

/** Messages below every eager limit, which go out without their receiver's help. Ranks are the
 * session's. */
class MpiMessenger final : public Messenger {
 public:
  /** `session` outlives it. */
  MpiMessenger(Session& session, int tag) : session_(session), tag_(tag) {}
  MpiMessenger(const MpiMessenger&) = delete;
  MpiMessenger& operator=(const MpiMessenger&) = delete;
  /** Messages that are still under way are left to MPI, with their memory. */
  ~MpiMessenger() override;

  void send(const ControlMessage& message, int destination) override;
  void flush() noexcept override;
  bool is_sending(const std::function<bool(int rank)>& is_meant) const override;
  void receive(
      const std::function<void(const ControlMessage& message, int source)>& handle) override;

 private:
  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    std::shared_ptr<RecycledVector<std::byte>> bytes;
    int peer = -1;
  };
  using Pendings = std::list<Pending>;

  /** Begins to receive what has come. */
  void collect();
  static bool is_done(Pending& pending);

  Session& session_;
  int tag_;
  Pendings outgoing_;
  Pendings incoming_;
};

}  // namespace tutti::mpi
