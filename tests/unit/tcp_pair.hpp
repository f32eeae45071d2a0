// Two ends of a TCP connection within this process.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <utility>

#include "comm/mpi/socket.hpp"

namespace tutti::mpi {

/** Two TCP sockets that are connected. */
inline std::array<Socket, 2> tcp_pair() {
  std::uint16_t port = 0;
  const Socket listener = listen_anywhere(port);
  Socket one = start_connecting(loopback_address(), port);
  while (connecting_state(one) == Connecting::under_way) {
  }
  Socket other = accept_from(listener);
  EXPECT_TRUE(one && other);
  return {std::move(one), std::move(other)};
}

}  // namespace tutti::mpi
