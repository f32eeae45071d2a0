// Other libraries' collectives, to be measured beside ours.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/call.hpp"

namespace tutti::bench {

/** How a library does a collective. */
struct Way {
  std::string algorithm;  ///< "ring" for example; "default" is what it chooses itself
  std::function<void()> run;
};

/** A library, connected among all ranks of MPI_COMM_WORLD for as long as this exists. */
class Peer {
 public:
  virtual ~Peer() = default;
  /** The ways in which the library does `call`, made ready for it; the fastest counts. None if it
   * does not know the operation or the dtype. Collective. */
  virtual std::vector<Way> ways(const Call& call) = 0;
};

/** MPI's collectives as its own settings have them. */
std::unique_ptr<Peer> make_mpi_peer();
/** To be called before MPI_Init if make_open_mpi_peer() will be. */
void prepare_open_mpi();
/** Which of those that Open MPI's component tuned has: rings alone (pipelines where an operation
 * has a root), or all of them, pipelines and trees also with short segments. */
enum class Algorithms { few, all };
/**
 * Open MPI's default, `algorithms` of its component tuned, and its component han, which works on
 * each host first: over communicators of their own in one job. Ways that the library does not have
 * are left out. Collective over MPI_COMM_WORLD.
 */
std::unique_ptr<Peer> make_open_mpi_peer(Algorithms algorithms);
/** Gloo over TCP, as PyTorch uses it: on one host on the loopback, otherwise on the address of the
 * host's name. Throws BackendUnavailable if this program was built without it. Collective over
 * MPI_COMM_WORLD. */
std::unique_ptr<Peer> make_gloo_peer();

/** Bare TCP sockets and vectorised additions, without any library: sums of 32-bit floats and
 * broadcasts in several ways, of which the fastest is what these hosts can do. Collective over
 * MPI_COMM_WORLD. */
std::unique_ptr<Peer> make_floor_peer();

/** "mpi", "openmpi" (few algorithms), "openmpi-all", "gloo" or "floor". Throws InvalidArgument for
 * other names. */
std::unique_ptr<Peer> make_peer(const std::string& name);

}  // namespace tutti::bench
