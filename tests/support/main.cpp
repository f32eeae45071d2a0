// The main of multi-rank tests: under mpiexec a process is a rank; else it makes the ranks itself.
//
//   mpiexec -n 3 some_test [gtest options]
//   some_test --ranks 3 --launch fork|threads [gtest options]
//
// TUTTI_TEST_HOSTS=2x2 (parse_hosts() tells the forms) makes the ranks under mpiexec pretend to be
// on several hosts.
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "support/world.hpp"

namespace tutti::test {
namespace {

/** Prints failures only: rank 0 prints the rest for all. */
class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

  void OnTestStart(const ::testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  // Called under gtest's lock: it must not ask gtest anything.
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("[rank %d] %s\n%s:%d: %s\n", rank_, test_.c_str(),
                result.file_name() ? result.file_name() : "?", result.line_number(),
                result.message());
    std::fflush(stdout);
  }

 private:
  int rank_;
  std::string test_;
};

/** tutti does not finalise MPI after an error, and many tests make errors; but mpiexec takes a
 * rank that has not finalised MPI for one that crashed. */
void finalise_mpi() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised != 0 && finalised == 0) MPI_Finalize();
}

int run_tests() {
  if (world().rank != 0) {
    ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    // A file of --gtest_output is rank 0's.
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new FailurePrinter(world().rank));
  }
  const int result = RUN_ALL_TESTS();
  finalise_mpi();
  const ::testing::UnitTest& unit_test = *::testing::UnitTest::GetInstance();
  if (unit_test.test_to_run_count() == 0) {
    std::fprintf(stderr, "no test has a name that --gtest_filter asks for\n");
    return 1;
  }
  return result;
}

/** Waits for the ranks; one that ended by a signal takes the others with it. */
int wait_for(std::vector<pid_t> ranks) {
  int failures = 0;
  for (std::size_t left = ranks.size(); left > 0; --left) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    std::size_t rank = 0;
    while (rank < ranks.size() && ranks[rank] != pid) ++rank;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++failures;
    if (WIFSIGNALED(status)) {
      std::printf("rank %zu ended by signal %d (%s)\n", rank, WTERMSIG(status),
                  ::strsignal(WTERMSIG(status)));
      for (const pid_t other : ranks) {
        if (other != pid) ::kill(other, SIGKILL);
      }
      while (::waitpid(-1, nullptr, 0) > 0) {
      }
      return 1;
    }
    std::printf("rank %zu ended with status %d\n", rank, WEXITSTATUS(status));
  }
  return failures > 0 ? 1 : 0;
}

int run_forked() {
  std::vector<pid_t> ranks;
  const pid_t parent = ::getpid();
  for (int rank = 0; rank < world().ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) {
      std::perror("fork");
      return 1;
    }
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ctest ends only the parent at its time limit
      if (::getppid() != parent) return 1;
      world().rank = rank;
      return run_tests();
    }
    ranks.push_back(pid);
  }
  return wait_for(ranks);
}

int run(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  World& here = world();
  std::string_view launch = "threads";
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--ranks" && i + 1 < argc) {
      here.ranks = std::atoi(argv[++i]);
    } else if (option == "--launch" && i + 1 < argc) {
      launch = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--ranks N] [--launch fork|threads]\n", argv[0]);
      return 2;
    }
  }
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* layout = std::getenv("TUTTI_TEST_HOSTS");
  const bool mpi = size != nullptr && rank != nullptr;
  if (mpi) {
    here.launch = Launch::mpi;
    here.ranks = std::atoi(size);
    here.rank = std::atoi(rank);
  } else {
    here.launch = launch == "fork" ? Launch::fork : Launch::threads;
  }
  here.hosts = parse_hosts(mpi && layout != nullptr ? layout : "", here.ranks);
  if (!here.one_host()) {
    const std::string host =
        "host" + std::to_string(here.hosts[static_cast<std::size_t>(here.rank)]);
    ::setenv("TUTTI_HOST_ID", host.c_str(), 1);
  }
  return here.launch == Launch::fork ? run_forked() : run_tests();
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  try {
    return tutti::test::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
