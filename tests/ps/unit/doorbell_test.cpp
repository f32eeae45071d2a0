// What wakes a server: rung by its own threads, by other processes, and by nobody else.
#include "ps/link/doorbell.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace tutti::ps::test {
namespace {

bool is_rung(const Doorbell& doorbell) {
  pollfd entry{doorbell.descriptor(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(PsDoorbell, RingsUntilItIsCleared) {
  const Doorbell doorbell;
  EXPECT_FALSE(is_rung(doorbell));
  for (int i = 0; i < 1000; ++i) doorbell.ring();
  EXPECT_TRUE(is_rung(doorbell));
  doorbell.clear();
  EXPECT_FALSE(is_rung(doorbell));
}

TEST(PsDoorbell, AnotherProcessRings) {
  const Doorbell doorbell;
  const DoorbellAddress address = doorbell.address();
  const pid_t child = ::fork();
  if (child == 0) {
    const FileDescriptor opened = open_doorbell(address);
    ring(opened);
    ::_exit(opened ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_rung(doorbell));
}

TEST(PsDoorbell, MoreRingsThanFitDoNotBlock) {
  const Doorbell doorbell;
  const FileDescriptor opened = open_doorbell(doorbell.address());
  ASSERT_TRUE(opened);
  for (int i = 0; i < 100'000; ++i) ring(opened);
  doorbell.clear();
  EXPECT_FALSE(is_rung(doorbell));
}

TEST(PsDoorbell, ThatIsGoneIsRungInVain) {
  std::optional<Doorbell> doorbell(std::in_place);
  const DoorbellAddress address = doorbell->address();
  const FileDescriptor opened = open_doorbell(address);
  ASSERT_TRUE(opened);
  doorbell.reset();
  ring(opened);  // no SIGPIPE
  EXPECT_FALSE(open_doorbell(address));
  EXPECT_FALSE(open_doorbell({}));
}

TEST(PsDoorbell, AnotherPipeIsNotRung) {
  const Doorbell doorbell;
  const Doorbell other;
  DoorbellAddress address = doorbell.address();
  address.descriptor = other.address().descriptor;
  EXPECT_FALSE(open_doorbell(address));
}

}  // namespace
}  // namespace tutti::ps::test
