// Keys and values that the ranks of a communicator share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/communicator.hpp"

namespace tutti {

/**
 * A table of keys, up to 64 KiB, and values, any bytes, that all ranks of a communicator read and
 * write, each when it likes: nobody has to take part in what another one does. For what is not
 * worth a collective, or cannot be one: settings, addresses, who meets whom.
 *
 * A value is there as a whole or not at all, whoever is killed meanwhile. It takes memory of the
 * machine's, as much as its bytes and its key's and at most a quarter more, and 1.2 MiB at first;
 * what is replaced or popped makes room for others. What a rank had begun to set or was reading
 * when it was killed stays until the store goes, as far as memory is concerned.
 *
 * The store is a member of the communicator: this rank has left that when it has destroyed both.
 * It goes with its last rank, and leaves nothing behind. All calls are safe from several threads;
 * forked children get a CommunicationError.
 *
 * On a host it lies in shared memory, and takes no rank's time but the caller's. Where the
 * communicator spans several, it lies on the host of rank 0, whose process serves the others over
 * TCP by threads of its own, as long as it has the store: a call takes a round trip then.
 *
 * Errors: PeerLost where a rank of the communicator has died, if what is asked for is not there,
 * for that rank might have been to set it; at once, wherever it is known, and the communicator has
 * failed with it then. Who has left before does not count. So do a mismatch, and an abort() of
 * another rank, end a wait. Whoever waits in get() or pop() counts, for those who wait for it in a
 * collective, as one who computes. A rank that is killed or stopped in the middle of a change or of
 * a look at the table, mostly a microsecond or so, but longer where the table grows by new memory,
 * is named to all others, now or at the deadline of the communicator. After a DeadlineExceeded,
 * InvalidArgument or SystemError the store is as before. A rank that was stopped in the middle of a
 * call until rank 0 has given that up, which may have done it, is told so by a PeerLost of itself,
 * with which nothing else has failed.
 */
class Store {
 public:
  /** Collective over the communicator, and blocking. Throws SystemError on every rank if shared
   * memory is short, or a rank of another host cannot connect to rank 0's. */
  explicit Store(const Communicator& communicator);
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  /** Does not wait for the other ranks, but from another host a second at most for rank 0's process
   * to hear of it. */
  ~Store();

  /** The key has this value from now on, instead of the one that it had. Throws SystemError, naming
   * the key, if there is no memory for it. Who is interrupted as it asks another host does not know
   * whether it has, nor after add(). */
  void set(std::string_view key, std::span<const std::byte> value);
  /**
   * The value of the key. Waits for one, at most for `timeout`, which may be 0; unset: for as long
   * as the communicator's waits may last. Then DeadlineExceeded, which names the key.
   */
  std::vector<std::byte> get(std::string_view key,
                             std::optional<std::chrono::milliseconds> timeout = {});
  /** The same, and removes the key: of several ranks that ask, one gets the value. Nobody does if
   * that rank is interrupted or killed as the value is on its way from another host. */
  std::vector<std::byte> pop(std::string_view key,
                             std::optional<std::chrono::milliseconds> timeout = {});
  /** Adds to the number that is the key's value, in decimal digits; 0 if it has none. No two calls
   * get the same sum from adding 1. Throws InvalidArgument if it is no number of 64 bits. */
  std::int64_t add(std::string_view key, std::int64_t delta);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
