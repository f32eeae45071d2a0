// Processes with the variables of a launcher join each other by a plain Communicator().
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/leftovers.hpp"
#include "tutti/interrupt.hpp"
#include "tutti/launch.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Variables = std::vector<std::pair<std::string, std::string>>;

constexpr CommOptions kShort{.timeout = 500ms};
constexpr const char* kMayNot = "this user may not";

/** A process with an environment of its own, which runs `body` and says what that returns or
 * throws. */
class Rank {
 public:
  using Body = std::function<std::string()>;

  Rank(const Variables& variables, const Body& body) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) std::abort();
    std::fflush(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      out() = ends[1];
      say(text_of(body));
      std::_Exit(0);
    }
    ::close(ends[1]);
    in_ = ends[0];
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    kill();
    ::close(in_);
  }

  /** In the process: a line that hear() returns. */
  static void say(const std::string& text) {
    const std::string line = text + "\n";
    if (::write(out(), line.data(), line.size()) < 0) std::_Exit(1);
  }
  /** The next line that it says; empty if it has ended. */
  std::string hear() const {
    std::string line;
    for (char character = 0; ::read(in_, &character, 1) == 1 && character != '\n';) {
      line += character;
    }
    return line;
  }
  void kill() {
    if (process_ == 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  static int& out() {
    static int descriptor = -1;
    return descriptor;
  }
  static std::string text_of(const Body& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  pid_t process_ = 0;
  int in_ = -1;
};

/** "rank 1 of 3, sum 3": after a sum over the ranks' numbers. */
std::string sum_over(Communicator& comm) {
  std::int64_t sum = comm.global_rank();
  comm.all_reduce(View(&sum, 1, DType::i64));
  return "rank " + std::to_string(comm.global_rank()) + " of " + std::to_string(comm.world_size()) +
         ", sum " + std::to_string(sum);
}

std::string join() {
  Communicator comm;
  return sum_over(comm);
}

std::string join_soon() {
  Communicator comm(kShort);
  return sum_over(comm);
}

/** Two communicators that live side by side. */
std::string join_twice() {
  Communicator first;
  Communicator second;
  const std::string text = sum_over(second);
  first.barrier();
  return launched_by() + ": " + text + (sum_over(first) == text ? "" : ", and another");
}

/** Says that it has joined, and stays. */
std::string join_and_stay() {
  Communicator comm;
  Rank::say("joined");
  ::pause();
  return "";
}

// Of this run of the test: others may be under way.
const std::string kTicket = UniqueId::create().to_string();
const std::string kRun = std::to_string(::getpid());

/** What launchers say to rank `rank` of `size`, all of them on this host. */
Variables tutti_run(int rank, int size) {
  return {{"TUTTI_RANK", std::to_string(rank)},
          {"TUTTI_WORLD_SIZE", std::to_string(size)},
          {"TUTTI_TICKET", kTicket}};
}

Variables torchrun(int rank, int size, int restart = 0) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29501"},
          {"TORCHELASTIC_RUN_ID", kRun},
          {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)}};
}

std::string endpoint(int rank) { return "host-" + kRun + ":" + std::to_string(6170 + rank); }

std::string endpoints_of(int size) {
  std::string list;
  for (int rank = 0; rank < size; ++rank) list += (rank == 0 ? "" : ",") + endpoint(rank);
  return list;
}

Variables paddle(int rank, int size) {
  return {{"PADDLE_TRAINER_ID", std::to_string(rank)},
          {"PADDLE_TRAINERS_NUM", std::to_string(size)},
          {"PADDLE_CURRENT_ENDPOINT", endpoint(rank)},
          {"PADDLE_TRAINER_ENDPOINTS", endpoints_of(size)}};
}

Variables srun(int rank, int size) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
          {"SLURM_NTASKS", std::to_string(size)},
          {"SLURM_JOB_ID", kRun},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_NNODES", "1"}};
}

TEST(Joining, RanksOfEveryLauncherMeetAsOftenAsTheyJoin) {
  const std::pair<const char*, Variables (*)(int, int)> launchers[] = {
      {"tutti run", &tutti_run},
      {"torchrun", [](int rank, int size) { return torchrun(rank, size); }},
      {"Paddle's launcher", &paddle},
      {"srun", &srun}};
  const Leftovers before;
  for (const auto& [name, variables] : launchers) {
    // Twice, as a user repeats a command: the job before has ended.
    for (int run = 0; run < 2; ++run) {
      const Rank third(variables(2, 3), &join_twice);
      const Rank first(variables(0, 3), &join_twice);
      const Rank second(variables(1, 3), &join_twice);
      EXPECT_EQ(first.hear(), std::string(name) + ": rank 0 of 3, sum 3");
      EXPECT_EQ(second.hear(), std::string(name) + ": rank 1 of 3, sum 3");
      EXPECT_EQ(third.hear(), std::string(name) + ": rank 2 of 3, sum 3");
    }
  }
  EXPECT_EQ(before.in_dev_shm(), "");
}

TEST(Joining, OneThatIsAloneNeedsNobody) {
  EXPECT_EQ(Rank(torchrun(0, 1), &join).hear(), "rank 0 of 1, sum 0");
  EXPECT_EQ(Rank(srun(0, 1), &join).hear(), "rank 0 of 1, sum 0");
}

TEST(Joining, JobsSideBySideDoNotMeet) {
  const Rank one(torchrun(0, 2, 0), &join);
  const Rank other(torchrun(0, 2, 1), &join);  // of the next attempt
  const Rank of_other(torchrun(1, 2, 1), &join);
  EXPECT_EQ(of_other.hear(), "rank 1 of 2, sum 1");
  EXPECT_EQ(other.hear(), "rank 0 of 2, sum 1");
  const Rank of_one(torchrun(1, 2, 0), &join);
  EXPECT_EQ(one.hear(), "rank 0 of 2, sum 1");
}

TEST(Joining, EndpointsAreEnough) {
  const auto join_as = [](int trainer) {
    return [trainer] {
      Communicator comm = from_endpoints(endpoints_of(2), trainer);
      return sum_over(comm);
    };
  };
  const Rank second({}, join_as(1));
  const Rank first({}, join_as(0));
  EXPECT_EQ(first.hear(), "rank 0 of 2, sum 1");
  EXPECT_EQ(second.hear(), "rank 1 of 2, sum 1");
  // One says it by arguments, the other by its environment.
  const Rank again({}, join_as(1));
  const Rank launched(paddle(0, 2), &join);
  EXPECT_EQ(launched.hear(), "rank 0 of 2, sum 1");
  EXPECT_EQ(again.hear(), "rank 1 of 2, sum 1");
}

TEST(Joining, AnotherSizeIsSaidByName) {
  const Rank first(torchrun(0, 2), &join);
  const Rank second(torchrun(1, 3), &join);
  const std::string refusal = second.hear();
  EXPECT_NE(refusal.find("world_size is 3, but rank 0 came with 2"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("WORLD_SIZE is 3"), std::string::npos) << refusal;
}

TEST(Joining, AJobThatIsAliveIsToldApart) {
  const Rank first(torchrun(0, 2), &join_and_stay);
  const Rank second(torchrun(1, 2), &join_and_stay);
  ASSERT_EQ(first.hear(), "joined");
  ASSERT_EQ(second.hear(), "joined");
  for (const int rank : {0, 1}) {
    const std::string refusal = Rank(torchrun(rank, 2), &join).hear();
    EXPECT_NE(refusal.find("MASTER_PORT"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("an earlier job with the same may still be running"), std::string::npos)
        << refusal;
  }
}

TEST(Joining, AJobThatCrashedDoesNotDisturb) {
  const Leftovers before;
  const auto expect_joined = [](const std::string& when) {
    const Rank second(torchrun(1, 2), &join);
    const Rank first(torchrun(0, 2), &join);
    EXPECT_EQ(first.hear(), "rank 0 of 2, sum 1") << when;
    EXPECT_EQ(second.hear(), "rank 1 of 2, sum 1") << when;
  };
  {
    const auto files = shared_files();
    Rank first(torchrun(0, 2), &join_and_stay);
    const auto patience = std::chrono::steady_clock::now() + 20s;
    while (shared_files() == files) {  // then it waits for the other
      ASSERT_LT(std::chrono::steady_clock::now(), patience);
      ::usleep(1000);
    }
  }
  expect_joined("before its ranks had met");
  {
    Rank first(torchrun(0, 2), &join_and_stay);
    const Rank second(torchrun(1, 2), &join_and_stay);
    ASSERT_EQ(first.hear(), "joined");
    ASSERT_EQ(second.hear(), "joined");
    first.kill();
    expect_joined("while rank 1 of it is there");
  }
  expect_joined("after its ranks had met");
  EXPECT_EQ(before.in_dev_shm(), "");
}

TEST(Joining, WhoComesTooLateMeetsTheNextAttempt) {
  const Rank first(tutti_run(0, 2), [] {
    try {
      Communicator comm(kShort);
    } catch (const PeerLost& error) {
      Rank::say(error.what());
    }
    return join();
  });
  EXPECT_NE(first.hear().find("lost rank 1: did not come"), std::string::npos);
  const Rank second(tutti_run(1, 2), &join);
  EXPECT_EQ(second.hear(), "rank 1 of 2, sum 1");
  EXPECT_EQ(first.hear(), "rank 0 of 2, sum 1");
}

TEST(Joining, WhoGivesUpFirstMeetsTheNextAttempt) {
  for (const int first_to_give_up : {0, 1}) {
    const auto try_twice = [&](int rank) {
      return [&, rank] {
        try {
          Communicator comm(CommOptions{.timeout = rank == first_to_give_up ? 1500ms : 2500ms});
        } catch (const PeerLost& error) {
          Rank::say(error.what());
        }
        return join();
      };
    };
    const Rank first(tutti_run(0, 3), try_twice(0));
    const Rank second(tutti_run(1, 3), try_twice(1));
    EXPECT_NE(first.hear().find("lost rank 2: did not come"), std::string::npos);
    EXPECT_NE(second.hear().find("lost rank 2: did not come"), std::string::npos);
    const Rank third(tutti_run(2, 3), &join);
    EXPECT_EQ(third.hear(), "rank 2 of 3, sum 3") << first_to_give_up;
    EXPECT_EQ(first.hear(), "rank 0 of 3, sum 3") << first_to_give_up;
    EXPECT_EQ(second.hear(), "rank 1 of 3, sum 3") << first_to_give_up;
  }
}

TEST(Joining, WhoGivesUpForAReasonOfItsOwnIsTheOneThatIsLost) {
  const Rank first(tutti_run(0, 3), &join);
  const Rank second(tutti_run(1, 3), [] {
    const InterruptCheck check([] { throw std::runtime_error("that is enough"); });
    try {
      return join();
    } catch (const std::runtime_error& error) {
      Rank::say(error.what());
    }
    ::pause();
    return std::string();
  });
  EXPECT_EQ(second.hear(), "that is enough");
  EXPECT_NE(first.hear().find("lost rank 1: gave up before all ranks had met"), std::string::npos);
}

/** Runs `body` where it is alone with what `kind` says (CLONE_NEWNET), which takes root. */
Rank::Body alone_with(int kind, const Rank::Body& body) {
  return [kind, body] { return ::unshare(kind) == 0 ? body() : std::string(kMayNot); };
}

TEST(Joining, ContainersThatShareMemoryAloneDoNotMeet) {
  const Rank first(torchrun(0, 2), &join_soon);
  const Rank second(torchrun(1, 2), alone_with(CLONE_NEWNET, &join_soon));
  const std::string said = second.hear();
  if (said == kMayNot) GTEST_SKIP() << "needs root, to be on another network";
  EXPECT_NE(first.hear().find("lost rank 1"), std::string::npos);
  EXPECT_NE(said.find("lost rank 0"), std::string::npos) << said;
}

TEST(Joining, AllAreToldThatThereIsTooLittleSharedMemory) {
  // A job whose first 64 MiB there is room for: they are reserved before the rest.
  const Rank job({}, alone_with(CLONE_NEWNS, [] {
                   if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                       ::mount("none", "/dev/shm", "tmpfs", 0, "size=70m") != 0) {
                     return std::string(kMayNot);
                   }
                   const Rank first(tutti_run(0, 60), &join);
                   const Rank second(tutti_run(1, 60), &join);
                   Rank::say(first.hear());
                   return second.hear();
                 }));
  const std::string first = job.hear();
  if (first == kMayNot) GTEST_SKIP() << "needs root, to have less shared memory";
  EXPECT_NE(first.find("/dev/shm has "), std::string::npos) << first;
  const std::string second = job.hear();
  EXPECT_NE(second.find("rank 0 could not reserve "), std::string::npos) << second;
}

TEST(Joining, AnotherUserDoesNotMeet) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const Rank first(torchrun(0, 2), &join_soon);
  const Rank second(torchrun(1, 2), [] {
    if (::setuid(65534) != 0) return std::string("setuid");
    return join_soon();
  });
  EXPECT_NE(first.hear().find("lost rank 1"), std::string::npos);
  EXPECT_NE(second.hear().find("lost rank 0"), std::string::npos);
}

}  // namespace
}  // namespace tutti::test
