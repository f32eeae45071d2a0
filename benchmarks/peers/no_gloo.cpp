// Stands for Gloo where it is not installed.
#include "peers/peer.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {

std::unique_ptr<Peer> make_gloo_peer() {
  throw BackendUnavailable("this program was built without Gloo: install libgloo-dev (make bench)");
}

}  // namespace tutti::bench
