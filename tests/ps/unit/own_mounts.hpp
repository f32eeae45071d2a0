// Processes that see another machine: with less shared memory, or less memory.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace tutti::ps::test {

inline constexpr int kSkipped = 77;

/** Ends this process as skipped unless it may mount what nobody else sees. */
inline void require_own_mounts() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    std::_Exit(kSkipped);
  }
}

/** Another /dev/shm for this process, with options of tmpfs. */
inline void mount_shared_memory(const char* options) {
  require_own_mounts();
  if (::mount("none", "/dev/shm", "tmpfs", 0, options) != 0) std::_Exit(kSkipped);
}

/** What the kernel tells this process of the machine's memory. */
class MemoryFigure {
 public:
  explicit MemoryFigure(std::int64_t kibis) {
    require_own_mounts();
    say(kibis);
    if (::mount(file_.c_str(), "/proc/meminfo", nullptr, MS_BIND, nullptr) != 0) {
      std::filesystem::remove(file_);
      std::_Exit(kSkipped);
    }
  }
  MemoryFigure(const MemoryFigure&) = delete;
  MemoryFigure& operator=(const MemoryFigure&) = delete;
  ~MemoryFigure() { std::filesystem::remove(file_); }

  void say(std::int64_t kibis) const {
    std::ofstream(file_) << "MemAvailable: " << kibis << " kB\n";
  }

 private:
  std::string file_ = ::testing::TempDir() + "tutti_meminfo_" + std::to_string(::getpid());
};

/** Calls a check in a process of its own. It says what is wrong; nothing if all is well. */
inline void check_in_process(const std::function<std::string()>& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::string wrong;
    try {
      wrong = check();
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    std::fprintf(stderr, "%s", wrong.c_str());
    std::_Exit(wrong.empty() && !::testing::Test::HasFailure() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) {
    GTEST_SKIP() << "only root can mount other figures: nothing was tested";
  }
  EXPECT_EQ(status, 0);
}

}  // namespace tutti::ps::test
