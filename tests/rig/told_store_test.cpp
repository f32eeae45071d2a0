// What a rank of another host tells the server of a store, and hears of it, when it gives up.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/hosts/store/remote_store.hpp"
#include "comm/hosts/store/store_frames.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/mpi/sockets/socket.hpp"
#include "rig/processes.hpp"
#include "rig/remote_store_fixture.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::test::remote_store_test {
namespace {

/** The server is a process of its own, which stops. */
class LateServerTest : public RemoteStoreTest {
 protected:
  LateServerTest() {
    processes_.start([&] {
      serve();
      *endpoint_ = server_->endpoint();
      *served_ = true;
      get(*table_, "end", kNever);
    });
    EXPECT_TRUE(holds_within(kPatience, [&] { return served_->load(); }));
  }
  void stop() {
    processes_.send(0, SIGSTOP);
    ASSERT_TRUE(processes_.stops(0, kPatience));
  }
  void go_on() { processes_.send(0, SIGCONT); }

  Shared<mpi::Endpoint> endpoint_;
  Shared<std::atomic<bool>> served_;
};

TEST_F(LateServerTest, WhoeverGivesItUpIsNotLost) {
  RemoteStore patient(*endpoint_, 2, kNever);
  {
    RemoteStore hasty(*endpoint_, 1, 2s);
    stop();
    EXPECT_EQ(outcome_of([&] { hasty.set("key", {}); }),
              "lost 0: lost rank 0: it keeps the store, and did not answer within 2.0 s");
  }
  go_on();
  get(patient, "key");  // it is set when the server goes on
  EXPECT_THROW(get(patient, "never", 120ms), DeadlineExceeded);
}

/** Where the store is said to be: what comes is this test's to answer. */
class ToldStoreTest : public ::testing::Test {
 protected:
  ToldStoreTest() {
    endpoint_.address_count = 1;
    endpoint_.addresses[0] = mpi::loopback_address();
    listener_ = mpi::listen_anywhere(endpoint_.port);
  }
  void TearDown() override {
    called_ = mpi::Socket();
    if (user_.joinable()) user_.join();
  }
  /** Who uses the store, on a thread. */
  void use(const std::function<void(RemoteStore&)>& body) {
    user_ = std::thread([this, body] {
      const std::string outcome = outcome_of([&] {
        RemoteStore store(endpoint_, 1, timeout_);
        body(store);
      });
      EXPECT_EQ(outcome, "nothing");
      has_left_ = true;
    });
    called_ = welcome_next();
  }
  mpi::Socket welcome_next() {
    mpi::Socket called;
    EXPECT_TRUE(
        holds_within(kPatience, [&] { return bool(called = mpi::accept_from(listener_)); }));
    StoreHello hello;
    EXPECT_TRUE(receive_bytes(called, mpi::bytes_of(hello), {kPatience}));
    EXPECT_TRUE(send_bytes(called, hello.own, {kPatience}));
    return called;
  }
  void answer(const mpi::Socket& called) {
    EXPECT_TRUE(send_bytes(called, mpi::bytes_of(StoreReply{}), {kPatience}));
  }
  StoreRequest::Kind next() { return next(called_); }
  static StoreRequest::Kind next(const mpi::Socket& called) {
    StoreRequest request;
    EXPECT_TRUE(receive_bytes(called, mpi::bytes_of(request), {kPatience}));
    std::string key(static_cast<std::size_t>(request.key_bytes), ' ');
    EXPECT_TRUE(receive_bytes(called, std::as_writable_bytes(std::span(key)), {kPatience}));
    return request.kind;
  }
  bool is_open() const {
    std::byte more{};
    return mpi::receive_exactly(called_, std::span(&more, 1)) == mpi::Received::too_few;
  }

  std::chrono::milliseconds timeout_ = kNever;
  mpi::Endpoint endpoint_;
  mpi::Socket listener_;
  mpi::Socket called_;
  std::thread user_;
  std::atomic<bool> has_left_ = false;
};

TEST_F(ToldStoreTest, WhoLeavesIsHeardBeforeItsConnectionsEnd) {
  const auto begin = std::chrono::steady_clock::now();
  use([](RemoteStore& /*store*/) {});
  EXPECT_EQ(next(), StoreRequest::Kind::leave);
  std::this_thread::sleep_for(60ms);  // what is not to happen would have by then
  const bool has_left = has_left_;
  if (std::chrono::steady_clock::now() - begin > 900ms) GTEST_SKIP() << "it waits for a second";
  EXPECT_FALSE(has_left);
  EXPECT_TRUE(is_open());
  answer(called_);
  user_.join();
}

TEST_F(ToldStoreTest, WhatIsGivenUpStaysOpenUntilTheServerHasClosedIt) {
  std::atomic<bool> closed = false;
  use([&](RemoteStore& store) {
    EXPECT_EQ(outcome_of([&] { get(store, "never", kNever, [] { throw Error("interrupted"); }); }),
              "interrupted");
    EXPECT_TRUE(holds_within(kPatience, [&] { return closed.load(); }));
  });
  EXPECT_EQ(next(), StoreRequest::Kind::get);
  EXPECT_EQ(next(), StoreRequest::Kind::end);
  std::this_thread::sleep_for(60ms);
  EXPECT_TRUE(is_open());
  // An answer that nobody reads would end a closed connection at once, with what is under way.
  answer(called_);
  called_ = mpi::Socket();
  closed = true;
  user_.join();
  EXPECT_FALSE(mpi::accept_from(listener_)) << "nothing is left to say";
}

TEST_F(ToldStoreTest, WhoGivesUpInTheMiddleOfARequestKeepsTheConnectionUntilItHasLeft) {
  timeout_ = 2s;
  constexpr std::size_t kMuch = 20'000'000;  // more than a connection takes
  use([&](RemoteStore& store) {
    EXPECT_EQ(outcome_of([&] { store.set("key", filled(kMuch, 1)); }),
              "lost 0: lost rank 0: it keeps the store, and did not answer within 2.0 s");
  });
  EXPECT_EQ(next(), StoreRequest::Kind::room);
  answer(called_);
  EXPECT_EQ(next(), StoreRequest::Kind::set);
  const mpi::Socket second = welcome_next();
  EXPECT_EQ(next(second), StoreRequest::Kind::leave);
  std::vector<std::byte> sent(kMuch);
  EXPECT_THROW(receive_bytes(called_, sent, {60ms}), DeadlineExceeded);  // it has not ended
  answer(second);
  user_.join();
}

/** So that the next call connects anew. */
void give_up_a_connection(RemoteStore& store) {
  EXPECT_EQ(outcome_of([&] { get(store, "never", kNever, [] { throw Error("interrupted"); }); }),
            "interrupted");
}

TEST_F(ToldStoreTest, WhoIsNotLetInAgainSaysSo) {
  timeout_ = 2s;
  use([](RemoteStore& store) {
    give_up_a_connection(store);
    EXPECT_EQ(outcome_of([&] { store.add("key", 1); }),
              "lost 0: lost rank 0: it keeps the store, and did not let this rank connect within "
              "2.0 s");
    give_up_a_connection(store);  // while it waits to be let in
  });
  user_.join();
}

TEST_F(ToldStoreTest, WhoFindsNobodyAgainSaysSo) {
  std::atomic<bool> closed = false;
  use([&](RemoteStore& store) {
    give_up_a_connection(store);
    EXPECT_TRUE(holds_within(kPatience, [&] { return closed.load(); }));
    EXPECT_EQ(outcome_of([&] { store.add("key", 1); }),
              "lost 0: lost rank 0: it keeps the store, and has ended or has destroyed it");
  });
  listener_ = mpi::Socket();
  closed = true;
  user_.join();
}

TEST_F(ToldStoreTest, NobodyIsThere) {
  listener_ = mpi::Socket();
  EXPECT_EQ(outcome_of([&] { RemoteStore(endpoint_, 1, kNever); }),
            "cannot connect to the store of rank 0: Connection refused");
}

TEST_F(ToldStoreTest, AnyCallMayBeInterrupted) {
  timeout_ = 20s;
  use([](RemoteStore& store) {
    const InterruptCheck check([] { throw Error("interrupted"); });
    EXPECT_EQ(outcome_of([&] { store.set("key", {}); }), "interrupted");
    EXPECT_EQ(outcome_of([&] { store.add("key", 1); }), "interrupted");
  });
  EXPECT_EQ(next(), StoreRequest::Kind::set);
  const mpi::Socket second = welcome_next();
  user_.join();
}

TEST_F(ToldStoreTest, WhoeverConnectsAgainHearsThatTheCommunicatorHasFailed) {
  std::thread server([this] { called_ = welcome_next(); });
  RemoteStore store(endpoint_, 1, kNever, [] { throw Error("the communicator has failed"); });
  server.join();
  give_up_a_connection(store);  // after which nobody lets it in
  EXPECT_EQ(outcome_of([&] { store.set("key", {}); }), "the communicator has failed");
  EXPECT_EQ(outcome_of([&] { store.add("key", 1); }), "the communicator has failed");
}

}  // namespace
}  // namespace tutti::test::remote_store_test
