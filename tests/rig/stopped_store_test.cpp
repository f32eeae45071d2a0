// Ranks that are stopped while they use a store, and who is named for it on other hosts.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "comm/hosts/store/remote_store.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/shm/memory/segment.hpp"
#include "comm/shm/store/host_store.hpp"
#include "comm/shm/store/robust_lock.hpp"
#include "rig/processes.hpp"
#include "rig/remote_store_fixture.hpp"
#include "tutti/log.hpp"
#include "tutti/unique_id.hpp"

namespace {

constexpr std::size_t kLongValue = 20'000'000;  // more than a connection takes
bool g_stops_as_it_sends = false;               // this process, the next long value

}  // namespace

/** Stands in front of the system's. */
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): those are reserved names
extern "C" ssize_t send(int socket, const void* data, std::size_t bytes, int flags) {
  const bool stops = bytes == kLongValue && std::exchange(g_stops_as_it_sends, false);
  const ssize_t sent = ::sendto(socket, data, stops ? 1000 : bytes, flags, nullptr, 0);
  if (stops) ::raise(SIGSTOP);
  return sent;
}

namespace tutti::test::remote_store_test {
namespace {

constexpr std::chrono::milliseconds kTimeout = 1200ms;
constexpr const char* kGivenUp =
    "lost 1: lost rank 1: its connection to the store has ended in the middle of a request, as it "
    "does when nothing of that moves within 1.2 s; rank 0, which keeps the store, still answers";

class StoppedStoreTest : public RemoteStoreTest {
 protected:
  StoppedStoreTest() { table_ = shm::HostStore::create(new_name(), 0, kMostRanks, kTimeout); }

  /** Rank 0, as process 0. */
  void start_server() {
    processes_.start([&] {
      set_log_sink({[](LogLevel level) { return level == LogLevel::warn; },
                    [&](LogLevel, std::string_view) { *has_given_up_ = true; }});
      serve();
      *endpoint_ = server_->endpoint();
      *served_ = true;
      get(*table_, "end", kNever);
    });
    ASSERT_TRUE(holds_within(kPatience, [&] { return served_->load(); }));
  }
  /** Rank 1, of another host, as process 1. */
  void start_rank(const std::function<void(RemoteStore&)>& body) {
    processes_.start([&, body] {
      RemoteStore store(*endpoint_, 1, kTimeout);
      (*reports_)[1].end_with(outcome_of([&] { body(store); }));
      store.set("after it", {});
    });
  }
  /** Has begun a request. */
  void expect_given_up() {
    ASSERT_TRUE(holds_within(kPatience, [&] { return has_given_up_->load(); }));
    processes_.send(1, SIGCONT);
    EXPECT_EQ(outcome_of_rank(1), kGivenUp);
    EXPECT_EQ(get(*table_, "after it"), filled(0, 0));
  }
  const std::string& new_name() {
    name_ = shm::segment_name(UniqueId::create(), "store");
    other_guard_ = std::make_unique<shm::NameGuard>(name_);
    return name_;
  }

  std::unique_ptr<shm::NameGuard> other_guard_;
  Shared<mpi::Endpoint> endpoint_;
  Shared<std::atomic<bool>> served_;
  Shared<std::atomic<bool>> has_given_up_;
};

TEST_F(StoppedStoreTest, WhoGoesOnAfterItsRequestWasGivenUpDoesNotNameTheServer) {
  start_server();
  start_rank([](RemoteStore& store) {
    g_stops_as_it_sends = true;
    store.set("key", filled(kLongValue, 1));
  });
  ASSERT_TRUE(processes_.stops(1, kPatience));
  expect_given_up();
}

TEST_F(StoppedStoreTest, WhoGoesOnAfterItsReplyWasGivenUpDoesNotNameTheServer) {
  start_server();
  start_rank([](RemoteStore& store) {
    bool has_stopped = false;
    get(store, "key", kPatience, [&] {
      if (!std::exchange(has_stopped, true)) ::raise(SIGSTOP);
    });
  });
  ASSERT_TRUE(processes_.stops(1, kPatience));
  table_->set("key", filled(kLongValue, 1));
  expect_given_up();
}

/** Both deadlines are the communicator's, and pass at about the same time: here the server's is
 * later. */
TEST_F(StoppedStoreTest, WhoStopsInTheMiddleOfAChangeIsNamedOnOtherHosts) {
  processes_.start([&] {
    const auto memory = shm::Segment::open(name_).map();
    auto& lock = reinterpret_cast<shm::StoreHeader*>(memory->base())->lock;
    const shm::RobustLock::Hold hold(lock, 2, kNever);
    ::raise(SIGSTOP);
  });
  ASSERT_TRUE(processes_.stops(0, kPatience));
  serve();
  RemoteStore store(server_->endpoint(), 1, kTimeout - 200ms);
  const std::string expected =
      "lost 2: lost rank 2: did not end a change of the store within 1.2 s";
  EXPECT_EQ(outcome_of([&] { store.set("key", {}); }), expected);
  EXPECT_EQ(outcome_of([&] { get(store, "key", 0ms); }), expected);
}

}  // namespace
}  // namespace tutti::test::remote_store_test
