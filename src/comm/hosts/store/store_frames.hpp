// What travels between a rank and the store on another host: a request and its reply.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/mpi/meeting/endpoint.hpp"

namespace tutti {

/** Who connects says, as the first thing, whom it wants and who it is; it is answered with the
 * token that it brought. */
struct StoreHello {
  mpi::Token wanted{};
  mpi::Token own{};
  std::int32_t rank = -1;
};

/** The key and the value follow. */
struct StoreRequest {
  /** room: whether there is some for a value, before a long one is sent. end: of the connection.
   * leave: of all that this rank has, in whatever they are. */
  enum class Kind : std::uint8_t { set, add, get, pop, room, end, leave };
  Kind kind = Kind::end;
  std::int64_t key_bytes = 0;
  std::int64_t value_bytes = 0;
  /** Of add the delta, of get and pop the timeout in milliseconds, of room the value's bytes. */
  std::int64_t number = 0;
};

/** The value follows, or the text of an error. */
struct StoreReply {
  enum class Status : std::uint8_t { done, deadline, refused, system, lost, ended, failed };
  Status status = Status::done;
  std::int64_t bytes = 0;
  /** Of add the sum, of an error of the system its number, or who is lost, or has ended. */
  std::int64_t number = 0;
};

/** A reply, and what follows it. */
struct StoreAnswer {
  StoreReply reply;
  std::vector<std::byte> bytes;
};

/** How a transfer waits. */
struct Patience {
  /** Without a byte that moves; then DeadlineExceeded. */
  std::chrono::milliseconds timeout;
  /** A descriptor that ends the transfer when it can be read, unless it is -1. */
  int stop = -1;
  /** Called every 50 ms if not empty; what it throws ends the transfer. */
  std::function<void()> look = {};
};

/** Moves all of `bytes`; false if the connection has ended, or the transfer has been stopped. */
bool send_bytes(const mpi::Socket& socket, std::span<const std::byte> bytes,
                const Patience& patience);
bool receive_bytes(const mpi::Socket& socket, std::span<std::byte> bytes, const Patience& patience);

}  // namespace tutti
