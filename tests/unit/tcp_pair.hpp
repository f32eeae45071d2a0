// Two ends of a TCP connection within this process, and a wait for what comes over one.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "comm/mpi/sockets/socket.hpp"

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

/** Whether `holds` does within a while: the kernel needs a moment, which depends on the machine's
 * load. */
inline bool soon(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tutti::mpi
