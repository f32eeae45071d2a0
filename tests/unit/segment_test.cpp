// What others on the machine do to shared memory, and to the sockets of tickets, hinders no start.
#include "comm/shm/memory/segment.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/shm/group/claim.hpp"
#include "comm/ticket_name.hpp"
#include "support/world.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uid_t kStranger = 65534;
constexpr int kSkipped = 77;

bool is_root() { return ::geteuid() == 0; }

/** Runs `body` in a child; the exit status is what it returns. */
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 1;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::_Exit(status);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void join_alone() { Communicator(0, 1, UniqueId::create(), test::short_timeout()); }

TEST(Segment, OfProcessesThatWereKilledIsNotOpened) {
  // Who shall meet by a ticket that others had before must not wait among what is left of them.
  const std::string name = segment_name(UniqueId::create(), "test");
  ASSERT_EQ(in_child([&] {
              const Segment segment = Segment::create(name);
              std::_Exit(0);
              return 1;
            }),
            0);
  ASSERT_TRUE(std::filesystem::exists("/dev/shm" + name));
  EXPECT_FALSE(Segment::open(name));
  EXPECT_FALSE(std::filesystem::exists("/dev/shm" + name));
}

TEST(Segment, OfAnotherUserIsRefused) {
  if (!is_root()) GTEST_SKIP() << "only root can make another user's file: nothing was tested";
  const std::string name = segment_name(UniqueId::create(), "test");
  const NameGuard guard(name);
  const std::string path = "/dev/shm" + name;
  FileDescriptor foreign(::open(path.c_str(), O_CREAT | O_RDWR, 0666));
  ASSERT_EQ(::fchown(foreign.get(), kStranger, kStranger), 0);
  try {
    Segment::open(name);
    ADD_FAILURE() << "was opened";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.error_number(), EACCES);
    EXPECT_NE(std::string(error.what()).find("user 65534"), std::string::npos) << error.what();
  }
  EXPECT_THROW(Segment::create(name), SystemError);
}

TEST(Segment, OfKilledProcessesIsMadeAnew) {
  const std::string name = segment_name(UniqueId::create(), "test");
  const NameGuard guard(name);
  EXPECT_EQ(in_child([&] {
              Segment::create(name).resize(5);
              return 0;
            }),
            0);
  Segment segment = Segment::create(name);
  EXPECT_EQ(segment.bytes(), 0);
  EXPECT_TRUE(Segment::open(name));
  EXPECT_THROW(Segment::create(name), SystemError);  // somebody lives
}

/** As a process that was stopped while it swept. */
TEST(Segment, ThatASweepHasLockedKeepsNobodyWaiting) {
  const UniqueId id = UniqueId::create();
  const std::string name = segment_name(id, "meeting");
  const NameGuard guard(name);
  const std::string path = "/dev/shm" + name;
  const FileDescriptor stale(::open(path.c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_EQ(::flock(stale.get(), LOCK_EX | LOCK_NB), 0);
  const auto begin = Clock::now();
  EXPECT_FALSE(Segment::open(name));
  EXPECT_THROW(Segment::create(name), SystemError);
  join_alone();
  EXPECT_THROW(Communicator(1, 2, id, test::short_timeout(100ms)), PeerLost);
  EXPECT_LT(Clock::now() - begin, 10s);
}

/** While it lives, posix_fallocate() is that of a kernel on which any signal that is not blocked
 * interrupts it, and a profiler's timer is always faster than a piece of this size. */
class ProfilersTimer {
 public:
  static constexpr off_t kPiece = 1 << 20;
  static constexpr int kEndless = 1000;

  ProfilersTimer() { interruptions = 0; }
  ProfilersTimer(const ProfilersTimer&) = delete;
  ProfilersTimer& operator=(const ProfilersTimer&) = delete;
  ~ProfilersTimer() { interruptions = kEndless; }

  /** Whether it interrupts a call now. */
  static bool strikes(off_t bytes) {
    sigset_t blocked;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    if (bytes < kPiece || sigismember(&blocked, SIGPROF) == 1 || interruptions == kEndless) {
      return false;
    }
    ++interruptions;
    return true;
  }
  static bool struck_endlessly() { return interruptions == kEndless; }

 private:
  inline static int interruptions = kEndless;
};

TEST(Segment, IsReservedUnderAProfilersTimer) {
  constexpr std::int64_t kMebi = std::int64_t{1024} * 1024;
  constexpr std::int64_t kOnePiece = 16 * kMebi + 3;
  constexpr std::int64_t kPieces = 128 * kMebi + 3;
  const std::string name = segment_name(UniqueId::create(), "test");
  const NameGuard guard(name);
  const Segment segment = Segment::create(name);
  const ProfilersTimer timer;
  segment.reserve(0, kOnePiece);
  EXPECT_FALSE(ProfilersTimer::struck_endlessly());
  EXPECT_EQ(segment.bytes(), kOnePiece);
  sigset_t blocked;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked), 0);
  EXPECT_EQ(sigismember(&blocked, SIGPROF), 0);
  if (std::filesystem::space("/dev/shm").available < kPieces) {
    GTEST_SKIP() << "/dev/shm has no room for 128 MiB: only a single piece was reserved";
  }
  segment.reserve(0, kPieces);
  EXPECT_FALSE(ProfilersTimer::struck_endlessly());
  EXPECT_EQ(segment.bytes(), kPieces);
}

/** While it lives, there is no /proc as far as linkat() is concerned. */
class NoProc {
 public:
  NoProc() { missing = true; }
  NoProc(const NoProc&) = delete;
  NoProc& operator=(const NoProc&) = delete;
  ~NoProc() { missing = false; }

  inline static bool missing = false;
};

TEST(Segment, IsMadeWithoutProc) {
  const NoProc none;
  const std::string name = segment_name(UniqueId::create(), "test");
  const NameGuard guard(name);
  const Segment segment = Segment::create(name);
  EXPECT_TRUE(segment);
  EXPECT_THROW(Segment::create(name), SystemError);  // it is locked
  EXPECT_TRUE(Segment::open(name));
}

/** The address of an abstract socket. */
struct Address {
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t bytes = 0;
};

/** Whoever sees a name in /dev/shm and binds it as a socket's hinders nobody. */
TEST(Claim, HasAnotherNameThanTheSegment) {
  const UniqueId id = UniqueId::create();
  const std::string name = segment_name(id, "meeting");
  std::vector<FileDescriptor> watchers;
  for (const std::string& seen : {name, name.substr(1)}) {
    for (const int type : {SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET}) {
      watchers.emplace_back(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
      const Address address(seen);
      ASSERT_EQ(::bind(watchers.back().get(), address.get(), address.bytes), 0);
    }
  }
  EXPECT_NO_THROW(Communicator(0, 1, id, test::short_timeout()));
}

TEST(Claim, OfThisUserIsSeenUntilItIsDropped) {
  const ClaimAddress address(UniqueId::create());
  EXPECT_FALSE(address.claimed());
  auto claim = address.claim();
  ASSERT_TRUE(claim && *claim);
  EXPECT_TRUE(address.claimed());
  EXPECT_FALSE(address.claim());
  claim.reset();
  EXPECT_FALSE(address.claimed());
}

/** Whoever sees the address may connect to it as often as its queue has room. */
TEST(Claim, IsSeenWhoeverHasFilledItsQueue) {
  const UniqueId id = UniqueId::create();
  const auto claim = ClaimAddress(id).claim();
  ASSERT_TRUE(claim && *claim);
  const Address address(ticket_name(id, "claim"));
  int connected = 0;
  do {
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connected = ::connect(fd.get(), address.get(), address.bytes);
  } while (connected == 0);
  ASSERT_EQ(errno, EAGAIN);
  EXPECT_TRUE(ClaimAddress(id).claimed());
  EXPECT_THROW(Communicator(0, 1, id, test::short_timeout()), InvalidArgument);
}

TEST(Claim, OfAStrangerIsNotBelieved) {
  if (!is_root()) GTEST_SKIP() << "only root can be another user: nothing was tested";
  const UniqueId id = UniqueId::create();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    const Address address(ticket_name(id, "claim"));
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const bool holds = ::setuid(kStranger) == 0 && ::bind(fd, address.get(), address.bytes) == 0 &&
                       ::listen(fd, 10) == 0;
    if (::write(ready[1], holds ? "y" : "n", 1) == 1) ::pause();
    std::_Exit(0);
  }
  char holds = 0;
  EXPECT_EQ(::read(ready[0], &holds, 1), 1);
  EXPECT_EQ(holds, 'y');
  EXPECT_FALSE(ClaimAddress(id).claimed());
  EXPECT_NO_THROW(Communicator(0, 1, id, test::short_timeout()));
  ::kill(stranger, SIGKILL);
  EXPECT_EQ(::waitpid(stranger, nullptr, 0), stranger);
  ::close(ready[0]);
  ::close(ready[1]);
}

/** In a /dev/shm of its own, so that nobody else has to look through these files. */
int start_among_foreign_files() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0) {
    return kSkipped;
  }
  for (int i = 0; i < 100'000; ++i) {
    const std::string path = "/dev/shm/tutti-" + std::to_string(i);
    const FileDescriptor foreign(::open(path.c_str(), O_CREAT | O_RDWR, 0600));
    if (::fchown(foreign.get(), kStranger, kStranger) != 0) return 1;
  }
  join_alone();  // the first start of a process does more
  auto shortest = Clock::duration::max();
  for (int i = 0; i < 10; ++i) {
    const auto begin = Clock::now();
    sweep();
    shortest = std::min(shortest, Clock::now() - begin);
  }
  std::fprintf(stderr, "a sweep took %.2f ms\n",
               std::chrono::duration<double, std::milli>(shortest).count());
  return shortest < 10ms ? 0 : 1;
}

TEST(Sweep, IsShortAmongAHundredThousandForeignFiles) {
  if (!is_root()) GTEST_SKIP() << "only root can make another user's files: nothing was tested";
  const int status = in_child(start_among_foreign_files);
  if (status == kSkipped) GTEST_SKIP() << "may not mount a /dev/shm: nothing was tested";
  EXPECT_EQ(status, 0);
}

}  // namespace

/** For ProfilersTimer; otherwise what the C library's does on tmpfs. */
extern "C" int posix_fallocate(int fd, off_t offset, off_t len) {
  if (ProfilersTimer::strikes(len)) return EINTR;
  return ::fallocate(fd, 0, offset, len) == 0 ? 0 : errno;
}

/** For NoProc. */
extern "C" int linkat(int fromfd, const char* from, int tofd, const char* to, int flags) {
  if (NoProc::missing) {
    errno = ENOENT;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_linkat, fromfd, from, tofd, to, flags));
}

}  // namespace tutti::shm
