// What wakes a server: rung by its own threads, by other processes, and by nobody else.
#include "ps/link/doorbell.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace tutti::ps::test {
namespace {

bool is_rung(const Doorbell& doorbell) {
  const auto [counter, pipe] = doorbell.descriptors();
  std::array<pollfd, 2> entries{pollfd{counter, POLLIN, 0}, pollfd{pipe, POLLIN, 0}};
  return ::poll(entries.data(), entries.size(), 0) > 0;
}

TEST(PsDoorbell, RingsUntilItIsCleared) {
  const Doorbell doorbell;
  EXPECT_FALSE(is_rung(doorbell));
  for (int i = 0; i < 1000; ++i) doorbell.ring();
  EXPECT_TRUE(is_rung(doorbell));
  doorbell.clear();
  EXPECT_FALSE(is_rung(doorbell));
}

/** Whether a child that opens it so has rung it. */
template <class Open>
bool is_rung_by_child(const Open& open) {
  const Doorbell doorbell;
  const DoorbellAddress address = doorbell.address();
  const pid_t child = ::fork();
  if (child == 0) {
    const FileDescriptor opened = open(address);
    ring(opened);
    ::_exit(opened ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  const bool rung = is_rung(doorbell);
  doorbell.clear();
  return status == 0 && rung && !is_rung(doorbell);
}

TEST(PsDoorbell, AnotherProcessRings) { EXPECT_TRUE(is_rung_by_child(&open_doorbell)); }

TEST(PsDoorbell, AnotherProcessRingsThatCannotHaveTheCounter) {
  EXPECT_TRUE(is_rung_by_child(&open_doorbell_pipe));
  EXPECT_TRUE(is_rung_by_child([](DoorbellAddress address) {
    address.counter = -1;
    return open_doorbell(address);
  }));
}

TEST(PsDoorbell, IsRungByItsCounterWhereTheSystemGivesThat) {
  const Doorbell doorbell;
  const DoorbellAddress address = doorbell.address();
  const pid_t child = ::fork();  // may have less than this process has of itself
  if (child == 0) {
    const FileDescriptor parent(static_cast<int>(::syscall(SYS_pidfd_open, address.process, 0)));
    const FileDescriptor counter(
        static_cast<int>(::syscall(SYS_pidfd_getfd, parent.get(), address.counter, 0)));
    ring(open_doorbell(address));
    ::_exit(counter ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  const bool is_given = WEXITSTATUS(status) == 0;
  const auto [counter, pipe] = doorbell.descriptors();
  std::array<pollfd, 2> entries{pollfd{counter, POLLIN, 0}, pollfd{pipe, POLLIN, 0}};
  EXPECT_EQ(::poll(entries.data(), entries.size(), 0), 1);
  EXPECT_EQ(entries[is_given ? 0 : 1].revents, POLLIN) << is_given;
}

TEST(PsDoorbell, MoreRingsThanFitDoNotBlock) {
  const Doorbell doorbell;
  for (const auto open : {&open_doorbell, &open_doorbell_pipe}) {
    const FileDescriptor opened = open(doorbell.address());
    ASSERT_TRUE(opened);
    for (int i = 0; i < 100'000; ++i) ring(opened);
    doorbell.clear();
    EXPECT_FALSE(is_rung(doorbell));
  }
}

TEST(PsDoorbell, ThatIsGoneIsRungInVain) {
  for (const auto open : {&open_doorbell, &open_doorbell_pipe}) {
    std::optional<Doorbell> doorbell(std::in_place);
    const DoorbellAddress address = doorbell->address();
    const FileDescriptor opened = open(address);
    ASSERT_TRUE(opened);
    doorbell.reset();
    ring(opened);  // no SIGPIPE
    EXPECT_FALSE(open(address));
    EXPECT_FALSE(open({}));
  }
}

TEST(PsDoorbell, AnotherPipeIsNotRung) {
  const Doorbell doorbell;
  const Doorbell other;
  DoorbellAddress address = doorbell.address();
  address.pipe = other.address().pipe;
  EXPECT_FALSE(open_doorbell(address));
}

}  // namespace
}  // namespace tutti::ps::test
