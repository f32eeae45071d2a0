// Sockets that several processes hold.
#include "comm/mpi/lent_sockets.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tutti::mpi {
namespace {

std::pair<Socket, Socket> connected() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

bool has_ended(const Socket& socket) {
  std::byte nothing{};
  return receive_exactly(socket, {&nothing, 1}) == Received::closed;
}

TEST(LentSockets, EndWithTheLastWhoHoldsThem) {
  auto [held, other] = connected();
  SocketLender lender(2);
  std::vector<SocketBorrower> borrowers;
  for (int i = 0; i < 2; ++i) borrowers.emplace_back(lender.address());
  EXPECT_FALSE(borrowers[0].step());  // nothing was lent so far
  lender.step();
  ASSERT_TRUE(lender.all_have_come());
  const int lent = held.get();
  constexpr std::int32_t kNumber = 7;
  ASSERT_TRUE(lender.lend({&lent, 1}, {&kNumber, 1}));
  std::array<std::optional<std::vector<LentSocket>>, 2> copies{borrowers[0].step(),
                                                               borrowers[1].step()};
  for (const auto& each : copies) {
    ASSERT_TRUE(each && each->size() == 1);
    EXPECT_EQ(each->front().number, kNumber);
  }

  held = Socket();
  EXPECT_FALSE(has_ended(other));
  copies[0].reset();
  EXPECT_FALSE(has_ended(other));
  copies[1].reset();
  EXPECT_TRUE(has_ended(other));
}

TEST(LentSockets, AreLentToAllOrCountForNothing) {
  auto [held, other] = connected();
  const int lent = held.get();
  SocketLender lender(2);
  SocketBorrower one(lender.address());
  lender.step();
  EXPECT_FALSE(lender.lend({&lent, 1}, {&lent, 1}));
}

TEST(LentSockets, ComeToNothingWhenTheLenderIsGone) {
  std::optional<SocketLender> lender(std::in_place, 1);
  SocketBorrower one(lender->address());
  lender.reset();
  const auto none = one.step();
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
  const auto nowhere = SocketBorrower({}).step();
  ASSERT_TRUE(nowhere);
  EXPECT_TRUE(nowhere->empty());
}

}  // namespace
}  // namespace tutti::mpi
