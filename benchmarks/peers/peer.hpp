// Other libraries' collectives, to be measured beside ours.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/call.hpp"

namespace tutti::bench {

class Peer {
 public:
  virtual ~Peer() = default;
  /** The ways in which the library does `call`, made ready for it; the fastest counts. None if it
   * does not know the operation or the dtype. Collective. */
  virtual std::vector<std::function<void()>> ways(const Call& call) = 0;
};

/** MPI's collectives as its own settings have them. */
std::unique_ptr<Peer> make_mpi_peer();
/** Gloo over TCP on the loopback: all-reduce alone, by its ring and by halving-doubling. Throws
 * BackendUnavailable if this program was built without it. Collective over MPI_COMM_WORLD. */
std::unique_ptr<Peer> make_gloo_peer();

/** "mpi" or "gloo". Throws InvalidArgument for other names. */
std::unique_ptr<Peer> make_peer(const std::string& name);

}  // namespace tutti::bench
