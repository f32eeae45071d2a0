// A store that ranks of other hosts use over connections: what they get, and how they hear of who
// has ended. The ranks are processes of this test, the host of the store is the test itself.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/hosts/store/remote_store.hpp"
#include "comm/hosts/store/store_frames.hpp"
#include "comm/hosts/store/store_server.hpp"
#include "comm/key_values.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/mpi/meeting/named_endpoint.hpp"
#include "comm/mpi/sockets/socket.hpp"
#include "comm/shm/memory/process.hpp"
#include "comm/shm/memory/segment.hpp"
#include "comm/shm/store/host_store.hpp"
#include "rig/processes.hpp"
#include "rig/remote_store_fixture.hpp"
#include "support/few_descriptors.hpp"
#include "tutti/error.hpp"
#include "tutti/log.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::test::remote_store_test {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 4096, 131'072, 5'000'001};

TEST_F(RemoteStoreTest, ValuesOfAllSizesGoBothWays) {
  serve();
  start(1, [](KeyValues& store) {
    for (const std::size_t size : kSizes) {
      const std::string key = std::to_string(size);
      store.set("remote " + key, filled(size, 3));
      if (get(store, "remote " + key) != filled(size, 3)) throw Error("another value than it set");
      if (get(store, "local " + key) != filled(size, 4)) throw Error("another value");
    }
  });
  for (const std::size_t size : kSizes) {
    const std::string key = std::to_string(size);
    EXPECT_EQ(get(*table_, "remote " + key), filled(size, 3));
    table_->set("local " + key, filled(size, 4));
  }
  EXPECT_EQ(outcome_of_rank(1), "nothing");
}

TEST_F(RemoteStoreTest, ThreadsOfARankWaitApart) {
  serve();
  start(1, [](KeyValues& store) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 5; ++i) {
      threads.emplace_back([&, i] { get(store, std::to_string(i)); });
    }
    for (int i = 4; i >= 0; --i) store.set(std::to_string(i), {});
    for (std::thread& thread : threads) thread.join();
    if (store.add("number", 5) + store.add("number", -7) != 3) throw Error("wrong sums");
  });
  EXPECT_EQ(outcome_of_rank(1), "nothing");
}

TEST_F(RemoteStoreTest, ErrorsAreThoseOfTheHostAndBreakNothing) {
  serve();
  start(1, [](KeyValues& store) {
    const auto expect = [](const std::string& text, const std::string& part) {
      if (text.find(part) == std::string::npos) throw Error("'" + text + "' without " + part);
    };
    store.set("word", filled(3, 'x'));
    expect(outcome_of([&] { store.add("word", 1); }), "\"word\"");
    expect(outcome_of([&] { get(store, "missing", 20ms); }), "set \"missing\" within 0.0 s");
    constexpr std::size_t kMuch = std::size_t{1} << 44U;  // is not touched
    void* much =
        ::mmap(nullptr, kMuch, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    expect(outcome_of([&] {
             store.set("word", {static_cast<const std::byte*>(much), kMuch});
           }),
           "cannot set \"word\" to " + std::to_string(kMuch) + " bytes: ");
    if (get(store, "word") != filled(3, 'x')) throw Error("the old value has gone");
  });
  EXPECT_EQ(outcome_of_rank(1), "nothing");
}

TEST_F(RemoteStoreTest, AWaitThatIsGivenUpDoesNotCountAsADeath) {
  serve();
  start(1, [](KeyValues& store) {
    for (int i = 0; i < 3; ++i) {
      const std::string outcome =
          outcome_of([&] { get(store, "never", kNever, [] { throw Error("interrupted"); }); });
      if (outcome != "interrupted") throw Error(outcome);
      store.set("given up " + std::to_string(i), {});
    }
    get(store, "end");
  });
  get(*table_, "given up 2");
  std::this_thread::sleep_for(120ms);  // what is not to happen would have by then
  EXPECT_THROW(get(*table_, "never", 0ms), DeadlineExceeded);
  table_->set("end", {});
  EXPECT_EQ(outcome_of_rank(1), "nothing");
  EXPECT_THROW(get(*table_, "never", 120ms), DeadlineExceeded);  // it has ended well
}

TEST_F(RemoteStoreTest, WhoeverIsKilledIsNamedToAllThatWait) {
  serve();
  for (const int rank : {1, 2}) {
    start(rank, [rank](KeyValues& store) {
      store.add("here", rank);
      get(store, "never", kNever);
    });
  }
  while (table_->add("here", 0) != 3) std::this_thread::sleep_for(1ms);
  processes_.send(0, SIGKILL);
  const std::string expected = "lost 1: lost rank 1: its process has ended";
  EXPECT_EQ(outcome_of([&] { get(*table_, "never", kNever); }), expected);
  EXPECT_EQ(outcome_of_rank(2), expected);
  table_->set("there", {});
  EXPECT_EQ(get(*table_, "there"), filled(0, 0));
}

TEST_F(RemoteStoreTest, ANeighbourThatDiesIsNamedButNotOneThatHasLeft) {
  Shared<std::array<shm::ProcessId, 2>> ids;
  Shared<std::array<std::atomic<bool>, 2>> known;
  for (const std::size_t number : {std::size_t{0}, std::size_t{1}}) {
    processes_.start([&, number] {
      (*ids)[number] = shm::ProcessId::self();
      (*known)[number] = true;
      std::this_thread::sleep_for(kNever);
    });
  }
  ASSERT_TRUE(holds_within(kPatience, [&] { return (*known)[0] && (*known)[1]; }));
  std::vector<StoreServer::Neighbour> neighbours;
  neighbours.push_back({2, shm::ProcessWatch((*ids)[0])});
  neighbours.push_back({3, shm::ProcessWatch((*ids)[1])});
  serve(std::move(neighbours));
  shm::HostStore::open(name_, 2, kNever)->leave();
  processes_.send(0, SIGKILL);
  ASSERT_TRUE(processes_.wait(0, kPatience));
  start(1, [](KeyValues& store) {
    store.set("waits", {});
    get(store, "never", kNever);
  });
  get(*table_, "waits");
  EXPECT_THROW(get(*table_, "never", 120ms), DeadlineExceeded);
  processes_.send(1, SIGKILL);
  EXPECT_EQ(outcome_of_rank(1), "lost 3: lost rank 3: its process has ended");
}

TEST_F(RemoteStoreTest, WhenTheServerEndsItsRankIsNamed) {
  serve();
  start(1, [](KeyValues& store) {
    store.set("waits", {});
    get(store, "never", kNever);
  });
  get(*table_, "waits");
  server_.reset();
  EXPECT_EQ(outcome_of_rank(1),
            "lost 0: lost rank 0: it keeps the store, and has ended or has destroyed it");
}

TEST_F(RemoteStoreTest, StrangersAreNotServed) {
  serve();
  mpi::Endpoint endpoint = server_->endpoint();
  endpoint.token[3] ^= std::byte{1};
  EXPECT_THROW(RemoteStore(endpoint, 1, 400ms), SystemError);
  EXPECT_THROW(get(*table_, "never", 60ms), DeadlineExceeded);
}

/** A connection of rank 1. */
mpi::Socket connected_to(const mpi::Endpoint& server) {
  mpi::Socket socket = mpi::start_connecting(mpi::loopback_address(), server.port);
  EXPECT_TRUE(holds_within(kPatience,
                           [&] { return mpi::connecting_state(socket) == mpi::Connecting::done; }));
  const StoreHello hello{server.token, server.token, 1};
  mpi::Token welcome{};
  EXPECT_TRUE(send_bytes(socket, mpi::bytes_of(hello), {kPatience}));
  EXPECT_TRUE(receive_bytes(socket, mpi::bytes_of(welcome), {kPatience}));
  return socket;
}

/** And over which a request has gone without its value. */
mpi::Socket say_half(const mpi::Endpoint& server, std::int64_t value_bytes = 100) {
  mpi::Socket socket = connected_to(server);
  const StoreRequest request{.kind = StoreRequest::Kind::set, .value_bytes = value_bytes};
  EXPECT_TRUE(send_bytes(socket, mpi::bytes_of(request), {kPatience}));
  return socket;
}

TEST_F(RemoteStoreTest, WhoDiesInTheMiddleOfARequestIsLost) {
  serve();
  { const mpi::Socket half = say_half(server_->endpoint()); }
  EXPECT_EQ(outcome_of([&] { get(*table_, "never", kNever); }),
            "lost 1: lost rank 1: its process has ended");
}

TEST_F(RemoteStoreTest, WhoLeavesInTheMiddleOfARequestIsNotLost) {
  serve();
  const auto begin = std::chrono::steady_clock::now();
  { const mpi::Socket half = say_half(server_->endpoint()); }
  { const RemoteStore leaves(server_->endpoint(), 1, kNever); }
  if (std::chrono::steady_clock::now() - begin > 900ms) GTEST_SKIP() << "it had a second to say so";
  EXPECT_THROW(get(*table_, "never", 1300ms), DeadlineExceeded);  // nor any later
}

TEST_F(RemoteStoreTest, WhoHasAnotherConnectionIsNotLostUntilThatHasEnded) {
  serve();
  mpi::Socket other = connected_to(server_->endpoint());
  { const mpi::Socket one = connected_to(server_->endpoint()); }
  EXPECT_THROW(get(*table_, "never", 120ms), DeadlineExceeded);
  other = mpi::Socket();
  EXPECT_EQ(outcome_of([&] { get(*table_, "never", kNever); }),
            "lost 1: lost rank 1: its process has ended");
}

TEST_F(RemoteStoreTest, ARequestThatTheServerCannotTakeIsNobodysDeath) {
  serve();
  const mpi::Socket socket = say_half(server_->endpoint(), -1);
  std::byte nothing{};
  EXPECT_FALSE(receive_bytes(socket, std::span(&nothing, 1), {kPatience}));
  EXPECT_THROW(get(*table_, "never", 120ms), DeadlineExceeded);
}

/** How often the threads of this process have gone to sleep. */
std::int64_t sleeps() {
  std::int64_t sum = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      constexpr std::string_view kOwn = "voluntary_ctxt_switches:";
      if (line.starts_with(kOwn)) sum += std::stoll(line.substr(kOwn.size()));
    }
  }
  return sum;
}

TEST_F(RemoteStoreTest, AServerOfWhomNothingIsAskedSleeps) {
  serve();
  RemoteStore store(server_->endpoint(), 1, kNever);
  store.set("key", {});
  const auto all_sleep = [] {
    const std::int64_t before = sleeps();
    std::this_thread::sleep_for(120ms);
    return sleeps() == before + 1;  // that of this thread
  };
  EXPECT_TRUE(holds_within(5s, all_sleep));
}

/** On another machine. */
mpi::Endpoint with_addresses(mpi::Endpoint endpoint) {
  endpoint.network = 1;
  endpoint.address_count = 0;
  for (const char* const one : {"127.0.0.2:0", "127.0.0.3:0", "127.0.0.4:0"}) {
    endpoint.addresses[endpoint.address_count++] = mpi::resolve(one).addresses.front();
  }
  return endpoint;
}

TEST_F(RemoteStoreTest, WhoReachesItByAllItsAddressesIsNotLost) {
  serve();
  for (int i = 0; i < 50; ++i) {
    RemoteStore store(with_addresses(server_->endpoint()), 1, kNever);
    EXPECT_EQ(store.add("calls", 1), i + 1);
  }
  EXPECT_THROW(get(*table_, "never", 120ms), DeadlineExceeded);
}

/** Says nothing, and finds that it was no more than tried. */
TEST_F(RemoteStoreTest, AMachineWithOneOfTheAddressesKeepsNobody) {
  std::uint16_t port = 0;
  { const mpi::Socket free = mpi::listen_anywhere(port); }
  const auto listen_on = [port](const std::string& address) {
    return mpi::listen_at(mpi::resolve(address + ":" + std::to_string(port)));
  };
  const mpi::Socket silent = listen_on("127.0.0.2");
  const mpi::Socket listener = listen_on("127.0.0.3");
  const mpi::Endpoint endpoint = with_addresses({.port = port});
  std::thread others([&] {
    const auto take_hello = [](const mpi::Socket& from, mpi::Socket& called, StoreHello& hello) {
      EXPECT_TRUE(holds_within(kPatience, [&] { return bool(called = mpi::accept_from(from)); }));
      EXPECT_TRUE(receive_bytes(called, mpi::bytes_of(hello), {kPatience}));
    };
    mpi::Socket server;
    mpi::Socket stranger;
    StoreHello hello;
    StoreRequest request{.kind = StoreRequest::Kind::set};
    take_hello(silent, stranger, hello);
    take_hello(listener, server, hello);
    // Nobody has given up the one that is silent before.
    EXPECT_EQ(mpi::receive_exactly(stranger, mpi::bytes_of(request)), mpi::Received::too_few);
    EXPECT_TRUE(send_bytes(server, hello.own, {kPatience}));
    EXPECT_TRUE(receive_bytes(stranger, mpi::bytes_of(request), {kPatience}));
    EXPECT_EQ(request.kind, StoreRequest::Kind::end);
    EXPECT_TRUE(receive_bytes(server, mpi::bytes_of(request), {kPatience}));
    EXPECT_EQ(request.kind, StoreRequest::Kind::leave);
  });
  EXPECT_EQ(outcome_of([&] { RemoteStore(endpoint, 1, kNever); }), "nothing");
  others.join();
}

TEST_F(RemoteStoreTest, TooFewDescriptorsAreNamedAndKillNobody) {
  std::mutex mutex;
  std::string said;
  set_log_sink({[](LogLevel level) { return level == LogLevel::warn; },
                [&](LogLevel, std::string_view line) {
                  const std::lock_guard lock(mutex);
                  said += std::string(line) + "\n";
                }});
  serve();
  {
    const int lowest = ::dup(0);
    ::close(lowest);
    const FewDescriptors few(static_cast<rlim_t>(lowest) + 1);  // which is the caller's
    EXPECT_EQ(outcome_of([&] { RemoteStore(server_->endpoint(), 1, 400ms); }),
              "cannot connect to the store of rank 0: Connection timed out");
  }
  RemoteStore(server_->endpoint(), 1, kNever).set("key", {});
  EXPECT_THROW(get(*table_, "never", 120ms), DeadlineExceeded);  // who had given up is not lost
  server_.reset();
  set_log_sink({});
  EXPECT_EQ(said,
            "a Store lets no more ranks of other hosts connect: Too many open files (ulimit -n)\n");
}

/** Who gives up in the middle closes nothing, and may live for long. */
TEST_F(RemoteStoreTest, WhatStopsInTheMiddleIsGivenUpAtTheDeadlineAndKillsNobody) {
  std::atomic<int> given_up = 0;
  set_log_sink({[](LogLevel level) { return level == LogLevel::warn; },
                [&](LogLevel, std::string_view line) {
                  EXPECT_EQ(line, "a Store gives up a connection: no answer within 1.0 s");
                  ++given_up;
                }});
  const std::string name = shm::segment_name(UniqueId::create(), "store");
  const shm::NameGuard guard(name);
  table_ = shm::HostStore::create(name, 0, kMostRanks, 1000ms);
  serve();
  const mpi::Socket half = say_half(server_->endpoint());
  table_->set("long", filled(20'000'000, 1));
  const mpi::Socket deaf = connected_to(server_->endpoint());
  const StoreRequest request{.kind = StoreRequest::Kind::get, .key_bytes = 4, .number = 0};
  EXPECT_TRUE(send_bytes(deaf, mpi::bytes_of(request), {kPatience}));
  EXPECT_TRUE(send_bytes(deaf, std::as_bytes(std::span("long", 4)), {kPatience}));
  EXPECT_TRUE(holds_within(kPatience, [&] { return given_up == 2; }));
  EXPECT_THROW(get(*table_, "never", 120ms), DeadlineExceeded);
  server_.reset();
  set_log_sink({});
}

}  // namespace
}  // namespace tutti::test::remote_store_test
