// Serves a host's store to ranks of other hosts.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "comm/hosts/store_frames.hpp"
#include "comm/mpi/endpoint.hpp"
#include "comm/shm/process.hpp"
#include "comm/shm/store/host_store.hpp"

namespace tutti {

/**
 * A thread for each connection, which does for a rank of another host what that asks for and sleeps
 * in the meantime: so nobody's calls are waited for, and a program that computes serves all the
 * same. A connection that ends without having said so tells that its rank has died, to all that
 * wait.
 */
class StoreServer {
 public:
  /** A rank of this host, whose death no connection tells. */
  struct Neighbour {
    int rank;
    shm::ProcessWatch process;
  };

  /** Listens from now on. `table` outlives it. Throws SystemError. */
  StoreServer(shm::HostStore& table, std::vector<Neighbour> neighbours);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  /** Ends the connections. Waits for none of the others. */
  ~StoreServer();

  /** Where to connect to. */
  const mpi::Endpoint& endpoint() const { return endpoint_; }

 private:
  struct Connection {
    std::atomic<bool> known = false;  ///< it has said hello
    std::atomic<bool> ended = false;
    std::thread thread;
  };

  /** Serves whoever connects, while there are not too many of whom nothing is known. */
  void accept();
  /** Says once what there is too little of, if that is why nobody could be let in. */
  void note_refusal(int error);
  void remove_ended();
  void serve(const mpi::Socket& socket, Connection& connection);
  /** Answers one request; false if it was the connection's last. */
  bool answer(const mpi::Socket& socket, const StoreRequest& request);
  /** What a wait for a key does meanwhile. */
  void look(const mpi::Socket& socket);

  shm::HostStore& table_;
  std::vector<Neighbour> neighbours_;
  std::mutex looking_;  // at these
  mpi::Socket listener_;
  mpi::Endpoint endpoint_;
  FileDescriptor stop_;                // can be read once the server ends
  std::list<Connection> connections_;  // the acceptor's
  bool told_of_shortage_ = false;      // likewise
  std::thread acceptor_;
};

}  // namespace tutti
