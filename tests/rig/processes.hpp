// Forked ranks, the memory that they share with their parent, and what became of them.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <exception>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/error.hpp"

namespace tutti::test {

/** Looks until `condition` holds, at most for `time`; whether it does. */
template <class Condition>
bool holds_within(std::chrono::milliseconds time, const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/** "lost 2: <message>". */
inline std::string describe(const PeerLost& error) {
  std::string text = "lost";
  for (const int rank : error.ranks()) text += " " + std::to_string(rank);
  return text + ": " + error.what();
}

/** What `action` throws, or "nothing". */
template <class Action>
std::string outcome_of(const Action& action) {
  try {
    action();
    return "nothing";
  } catch (const PeerLost& error) {
    return describe(error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/** A T, all zeros at first, that this process shares with those that it forks. */
template <class T>
class Shared {
 public:
  Shared()
      : data_(static_cast<T*>(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (data_ == MAP_FAILED) throw SystemError("cannot map memory", errno);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(data_, sizeof(T)); }
  T& operator*() const { return *data_; }
  T* operator->() const { return data_; }

 private:
  T* data_;
};

/** What a rank shows its parent. */
struct Report {
  std::atomic<std::uint64_t> calls;  ///< that it has begun
  std::atomic<bool> ended;
  std::array<char, 1000> outcome;

  void end_with(const std::string& text) {
    text.copy(outcome.data(), outcome.size() - 1);
    ended = true;
  }
};

/** Forked processes, numbered in the order of their start. The destructor leaves none alive. */
class Processes {
 public:
  Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    for (int number = 0; number < static_cast<int>(pids_.size()); ++number) {
      send(number, SIGKILL);
      wait(number, std::chrono::seconds(30));
    }
  }

  void start(const std::function<void()>& body) {
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) throw SystemError("cannot fork", errno);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) body();
      std::_Exit(0);  // the parent's own objects are not the child's to destroy
    }
    pids_.push_back(child);
  }
  void send(int number, int signal) {
    if (pid(number) > 0) ::kill(pid(number), signal);
  }
  /** Whether a process ends in time; its wait status. Each is waited for once. */
  std::optional<int> wait(int number, std::chrono::milliseconds time) {
    int status = 0;
    const auto ended = [&] { return ::waitpid(pid(number), &status, WNOHANG) == pid(number); };
    if (pid(number) == 0 || !holds_within(time, ended)) return std::nullopt;
    pid(number) = 0;
    return status;
  }
  /** Whether a process stops itself in time. */
  bool stops(int number, std::chrono::milliseconds time) {
    return holds_within(time, [&] {
      int status = 0;
      if (::waitpid(pid(number), &status, WNOHANG | WUNTRACED) != pid(number)) return false;
      return WIFSTOPPED(status);
    });
  }

 private:
  pid_t& pid(int number) { return pids_[static_cast<std::size_t>(number)]; }
  std::vector<pid_t> pids_;
};

}  // namespace tutti::test
