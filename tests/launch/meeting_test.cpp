// Wrappers and a launcher that meet over TCP within this machine; one that reads late.
#include "launch/meeting.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launch/wrapper.hpp"

namespace tutti::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 20s;
constexpr auto kSilence = 250ms;

/** A process that runs `body`, whose exit code is what that returns, and that does not outlive its
 * owner. */
class Child {
 public:
  explicit Child(const std::function<int()>& body) : process_(::fork()) {
    if (process_ != 0) return;
    try {
      std::_Exit(body());
    } catch (const std::exception&) {
      std::_Exit(99);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (process_ == 0) return;
    ::kill(process_, SIGKILL);
    end();
  }

  int end() {
    int status = 0;
    ::waitpid(std::exchange(process_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t process_;
};

/** Waits until one of these descriptors is readable; false after the time. */
bool wait_for(const std::vector<int>& descriptors, std::chrono::milliseconds limit = kLimit) {
  std::vector<pollfd> sources;
  for (const int descriptor : descriptors) sources.push_back({descriptor, POLLIN, 0});
  return ::poll(sources.data(), sources.size(), static_cast<int>(limit.count())) > 0;
}

/** A meeting with one wrapper, which runs as `body` says with the options that it was given. */
class Met {
 public:
  Met(const WrapperOptions& options, const std::function<int(const WrapperOptions&)>& body)
      : wrapper_([&] {
          const pid_t parent = ::getppid();
          ::setenv(kSecretVariable, meeting_.secret().c_str(), 1);
          ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
          WrapperOptions given =
              join_launcher(meeting_.addresses_for({{.name = "127.0.0.1"}}), kSilence);
          return ::getppid() == parent ? body(given) : 98;
        }) {
    while (!(control.open() && output.open()) && wait_for(meeting_.descriptors())) {
      meeting_.step([&](const Caller& caller, Channel channel) {
        (caller.control ? control : output) = std::move(channel);
      });
    }
    control.send(MessageType::setup, setup_text(options, {}));
  }

  /** All that is sent on the connection for output; nothing if it does not end, or is cut. */
  std::optional<std::size_t> read_output() {
    std::size_t bytes = 0;
    for (;;) {
      if (!wait_for({output.descriptor()})) return std::nullopt;
      const bool there =
          output.receive([&](MessageType, std::string_view text) { bytes += text.size(); });
      if (!there) return output.cut() ? std::nullopt : std::optional(bytes);
    }
  }
  int end() { return wrapper_.end(); }

 private:
  Meeting meeting_{kSilence};
  Child wrapper_;

 public:
  Channel control;
  Channel output;
};

/** Options of a rank that writes so many bytes. */
WrapperOptions writer(std::size_t bytes) {
  WrapperOptions options;
  options.show_out = true;
  options.command = {"/usr/bin/head", "-c", std::to_string(bytes), "/dev/zero"};
  return options;
}

TEST(Meeting, WhoDoesNotReadForLongLosesNothing) {
  constexpr std::size_t kMessage = 64 << 10;
  constexpr std::size_t kMessages = 512;  // far more than sockets keep
  Met met(writer(0), [](const WrapperOptions& options) {
    Channel output{FileDescriptor(options.output)};
    for (std::size_t i = 0; i < kMessages; ++i) {
      output.send(MessageType::out, std::string(kMessage, 'x'));
      while (output.unsent() > 0) {
        pollfd room{options.output, POLLOUT, 0};
        ::poll(&room, 1, -1);
        output.flush();
      }
    }
    return 0;
  });
  std::this_thread::sleep_for(5 * kSilence);  // the window has been shut for longer than is allowed
  EXPECT_EQ(met.read_output(), kMessage * kMessages);
  EXPECT_EQ(met.end(), 0);
}

TEST(Meeting, AWrapperStaysUntilItsOutputWasRead) {
  constexpr std::size_t kBytes = 100'000;
  Met met(writer(kBytes),
          [](const WrapperOptions& options) { return run_wrapper(options, ::getppid()); });
  bool closed = false;
  while (!closed && wait_for({met.control.descriptor()})) {
    ASSERT_TRUE(met.control.receive(
        [&](MessageType type, std::string_view) { closed |= type == MessageType::closed; }));
  }
  EXPECT_TRUE(closed);
  EXPECT_FALSE(wait_for({met.control.descriptor()}, 300ms));  // not even its end
  EXPECT_EQ(met.read_output(), kBytes);
  met.output.close();
  EXPECT_EQ(met.end(), 0);
}

TEST(Meeting, AWrapperWaitsForLongerThanTheLauncher) {
  for (const std::size_t ranks : {1UL, 1000UL, 100000UL}) {
    EXPECT_GT(setup_limit(ranks), arrival_limit(ranks)) << ranks;
  }
}

}  // namespace
}  // namespace tutti::launch
