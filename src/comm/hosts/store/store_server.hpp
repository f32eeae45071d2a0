// Serves a host's store to ranks of other hosts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "comm/hosts/store/store_frames.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/shm/memory/process.hpp"
#include "comm/shm/store/host_store.hpp"

namespace tutti {

/**
 * A thread for each connection, which does for a rank of another host what that asks for and sleeps
 * in the meantime: so nobody's calls are waited for, and a program that computes serves all the
 * same. A rank of which no connection is left, and of which one has ended without having said so,
 * has died, unless it has left: all that wait are told.
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
  /** stranger: who has not said hello. */
  enum class Caller : std::uint8_t { stranger, known, turned_away };
  struct Connection {
    std::weak_ptr<const mpi::Socket> socket;  ///< which its thread has
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    std::atomic<Caller> caller = Caller::stranger;
    std::atomic<bool> ended = false;
    std::thread thread{};
  };

  /** What its connections tell of a rank of another host. */
  struct Guest {
    int connections = 0;
    bool cut = false;   ///< one has ended without having said so
    bool left = false;  ///< it has said that it needs the store no longer
  };

  /** Serves whoever connects. Where strangers have all places, the silent lose theirs. */
  void accept();
  /** Ends the connections of those who have had time for a hello, and have not sent a whole one. */
  void turn_silent_away();
  /** Says once what there is too little of, if that is why nobody could be let in. */
  void note_refusal(int error);
  void remove_ended();
  void serve(const mpi::Socket& socket, Connection& connection);
  /** Answers what a rank asks for, to the end of the connection. */
  void serve_rank(const StoreHello& hello, const mpi::Socket& socket);
  /** Answers one request; false if it was the connection's last. Throws ConnectionOver, and
   * DeadlineExceeded if the rest of it does not come, or the reply is not taken. */
  bool answer(int rank, const mpi::Socket& socket, const StoreRequest& request);
  /** Does what is asked for; what goes wrong with that is an answer, too. Throws GivenUp if the
   * rank does not want it any more, and ConnectionOver. */
  StoreAnswer carry_out(const StoreRequest& request, std::string_view key,
                        std::span<const std::byte> given, const mpi::Socket& socket);
  /** A connection of `rank` has ended, without having said so if it was `cut`. */
  void note_end(int rank, bool cut);
  bool has_died(int rank);
  /** Who gives this process up in the middle of a request says so over another connection, which
   * may not have been let in yet. */
  void wait_for_word(int rank);
  void lose_if_dead(int rank);
  bool is_stopped(std::chrono::milliseconds within = {}) const;
  /** What a wait for a key does meanwhile. */
  void look(const mpi::Socket& socket);

  shm::HostStore& table_;
  std::vector<Neighbour> neighbours_;
  std::mutex looking_;  // at these
  std::mutex mutex_;
  std::map<int, Guest> guests_;  // by their ranks, with mutex_ held
  mpi::Socket listener_;
  mpi::Endpoint endpoint_;
  FileDescriptor stop_;                // can be read once the server ends
  std::list<Connection> connections_;  // the acceptor's
  bool told_of_shortage_ = false;      // likewise
  std::thread acceptor_;
};

}  // namespace tutti
