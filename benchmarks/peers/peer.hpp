// Other libraries' all-reduce, to be measured beside ours.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/dtype.hpp"

namespace tutti::bench {

class Peer {
 public:
  virtual ~Peer() = default;
  /** The ways in which the library sums `data` over all ranks in place, made ready for it; the
   * fastest counts. None if it does not know the dtype. Collective. */
  virtual std::vector<std::function<void()>> all_reduce(View data) = 0;
};

/** MPI_Allreduce as MPI's own settings have it. */
std::unique_ptr<Peer> make_mpi_peer();
/** Gloo over TCP on the loopback: its ring and halving-doubling. Throws BackendUnavailable if this
 * program was built without it. Collective over MPI_COMM_WORLD. */
std::unique_ptr<Peer> make_gloo_peer();

/** "mpi" or "gloo". Throws InvalidArgument for other names. */
std::unique_ptr<Peer> make_peer(const std::string& name);

}  // namespace tutti::bench
