// Sockets that several processes hold.
#include "comm/mpi/sockets/lent_sockets.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "support/few_descriptors.hpp"

namespace tutti::mpi {
namespace {

constexpr std::chrono::milliseconds kPatience{20'000};

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
  ASSERT_EQ(lender.lend({&lent, 1}, {&kNumber, 1}, kPatience), 0);
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
  EXPECT_EQ(lender.taken(kPatience), 0);
}

TEST(LentSockets, WhoCannotHaveThemSaysSo) {
  auto [held, other] = connected();
  SocketLender lender(2);
  std::vector<SocketBorrower> borrowers;
  for (int i = 0; i < 2; ++i) borrowers.emplace_back(lender.address());
  lender.step();
  const std::vector<int> lent(3, held.get());
  const std::vector<std::int32_t> numbers(3);
  ASSERT_EQ(lender.lend(lent, numbers, kPatience), 0);
  auto copies = borrowers[0].step();
  ASSERT_TRUE(copies);
  EXPECT_EQ(copies->size(), 3U);
  {
    const int lowest = ::dup(0);  // there is one more, and not three
    ::close(lowest);
    const test::FewDescriptors few(static_cast<rlim_t>(lowest) + 1);
    const auto none = borrowers[1].step();
    ASSERT_TRUE(none);
    EXPECT_TRUE(none->empty());
  }
  EXPECT_EQ(lender.taken(kPatience), EMFILE);
  copies.reset();
  held = Socket();
  EXPECT_TRUE(has_ended(other));
}

TEST(LentSockets, WhoEndsBeforeItHasThemIsKnownAtOnce) {
  auto [held, other] = connected();
  const int lent = held.get();
  SocketLender lender(1);
  std::optional<SocketBorrower> borrower(std::in_place, lender.address());
  lender.step();
  ASSERT_EQ(lender.lend({&lent, 1}, {&lent, 1}, kPatience), 0);
  borrower.reset();
  EXPECT_EQ(lender.taken(kPatience), ECONNRESET);
}

TEST(LentSockets, AreLentToAllOrCountForNothing) {
  auto [held, other] = connected();
  const int lent = held.get();
  SocketLender lender(2);
  SocketBorrower one(lender.address());
  lender.step();
  EXPECT_EQ(lender.lend({&lent, 1}, {&lent, 1}, kPatience), ENOTCONN);
}

/** Lends to many, of whom none takes anything before the last but `behind` have got theirs; what
 * lend() returned. */
int lend_to_slow_borrowers(std::size_t borrowers, std::size_t sockets, std::size_t behind) {
  SocketLender lender(borrowers);
  std::vector<SocketBorrower> others;
  for (std::size_t i = 0; i < borrowers; ++i) others.emplace_back(lender.address());
  lender.step();
  const auto pair = connected();
  const std::vector<int> lent(sockets, pair.first.get());
  const std::vector<std::int32_t> numbers(sockets);
  std::thread takes([&] {
    while (!others[borrowers - behind - 1].step()) {
    }
    for (SocketBorrower& one : others) {
      if (&one == &others[borrowers - behind - 1]) continue;
      while (!one.step()) {
      }
    }
  });
  const int error = lender.lend(lent, numbers, kPatience);
  if (error != 0) lender = SocketLender(0);  // nothing more comes
  takes.join();
  return error;
}

/** What `lend` returns in a process of a user of whom the kernel takes 9 times 8 descriptors, then
 * no more before some have been taken; `otherwise` if there is no such user. */
int error_of_limited_user(const std::function<int()>& lend, int otherwise) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr rlimit kFew{64, 64};
    const bool limited = ::setrlimit(RLIMIT_NOFILE, &kFew) == 0;
    const bool is_user = ::geteuid() != 0 || ::setresuid(65534, 65534, 65534) == 0;
    ::_exit(limited && is_user ? lend() : otherwise);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(LentSockets, WaitUntilThereIsRoomForThem) {
  EXPECT_EQ(error_of_limited_user([] { return lend_to_slow_borrowers(12, 8, 3); }, 0), 0);
}

TEST(LentSockets, DoNotWaitForRoomForLongerThanTheyMay) {
  const auto lend = [] {
    constexpr std::size_t kBorrowers = 12;
    SocketLender lender(kBorrowers);
    std::vector<SocketBorrower> nobody_takes;
    for (std::size_t i = 0; i < kBorrowers; ++i) nobody_takes.emplace_back(lender.address());
    lender.step();
    const auto pair = connected();
    const std::vector<int> lent(8, pair.first.get());
    return lender.lend(lent, std::vector<std::int32_t>(lent.size()), {});
  };
  EXPECT_EQ(error_of_limited_user(lend, ETOOMANYREFS), ETOOMANYREFS);
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
