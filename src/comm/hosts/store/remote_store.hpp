// A store that another host keeps.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "comm/hosts/store/store_frames.hpp"
#include "comm/key_values.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {

class Waiter;

/** Asks the StoreServer of rank 0. A call has a connection of its own, which the next one uses
 * again: so one that waits keeps no other thread waiting. One that is given up is closed by the
 * server, who may be late: until then its end would look like that of this process. */
class RemoteStore final : public KeyValues {
 public:
  using Look = std::function<void()>;

  /** Connects. Throws SystemError where that cannot be. `look` throws what the communicator has
   * failed with: set() and add() call it now and then while they are not connected. */
  RemoteStore(const mpi::Endpoint& server, int rank, std::chrono::milliseconds timeout,
              Look look = InterruptCheck::poll);
  RemoteStore(const RemoteStore&) = delete;
  RemoteStore& operator=(const RemoteStore&) = delete;
  /** Says goodbye, so that nobody takes this process for dead, and waits a second in all, at most,
   * until the server has heard it. */
  ~RemoteStore() override;

  // PeerLost of rank 0 if that has ended, has destroyed its store, or does not answer; of this rank
  // if that was so late, in the middle of a request, that rank 0 has given it up.
  void set(std::string_view key, std::span<const std::byte> value) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::vector<std::byte> get(std::string_view key, Take take, std::chrono::milliseconds timeout,
                             const Look& look) override;

 private:
  /** How a call waits. */
  struct Wait {
    std::chrono::milliseconds beyond{0};  ///< how much longer than usual the answer may take
    Look meanwhile = InterruptCheck::poll;
    Look unconnected = meanwhile;  ///< instead of it, without a connection
  };
  StoreAnswer ask(StoreRequest request, std::string_view key, std::span<const std::byte> value,
                  const Wait& wait);
  /** A server that lets nobody in for now finds `farewell` later. Throws SystemError if there is no
   * connection to be had, and DeadlineExceeded if there is none within `limit`. A server that
   * strangers crowd may take this rank for one, and is asked again. */
  mpi::Socket connect(std::chrono::milliseconds limit, StoreRequest::Kind farewell,
                      const Look& look);
  mpi::Socket connect_once(Waiter& waiter, StoreRequest::Kind farewell, const Look& look);
  mpi::Socket take_connection(const Look& look);
  /** Where the server has been reached before: PeerLost if it is not now. */
  mpi::Socket connect_again(std::chrono::milliseconds limit, const Look& look);
  /** One has ended in the middle of a request: PeerLost of rank 0, or of this one if that lets it
   * connect again. */
  [[noreturn]] void lose_connection(const Look& look);
  /** Keeps a connection until the server has closed it; without memory for that it ends. */
  void give_up(mpi::Socket socket) noexcept;
  /** Closes those that the server has closed. */
  void forget_closed();
  void leave();

  const mpi::Endpoint server_;
  const mpi::Endpoint own_;  // of which only the token and the network count
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const Look look_;
  std::mutex mutex_;
  std::vector<mpi::Socket> idle_;      // connections that no call uses
  std::vector<mpi::Socket> given_up_;  // and that none will use
};

}  // namespace tutti
