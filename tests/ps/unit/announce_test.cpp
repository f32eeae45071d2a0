// A worker that announces a request: a server that sleeps is awake by the time it comes.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ps/echo.hpp"

namespace tutti::ps::test::announce_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

const Terms kTerms{"alike"};

/** A server with one worker, which this thread is. `serve` is what its thread does first. */
template <class Serve>
class Pair {
 public:
  explicit Pair(const Serve& serve)
      : server_([this, serve] {
          const std::unique_ptr<Links> links =
              meet_workers(std::move(place_.listener), worker_names(1), kTerms, {}, "", 20s);
          serve(*links);
          echo(*links, 1);
        }) {
    const std::vector<ServerAddress> servers{address_of(0, endpoint_)};
    Meeting meeting = meet_servers(servers, 0, worker_name(0), kTerms, {}, 20s);
    link_ = std::move(meeting.servers[0].link);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    stop(*link_);
    server_.join();
  }
  Link& link() { return *link_; }

 private:
  Place place_ = listen_as(0);
  mpi::Endpoint endpoint_ = place_.endpoint;
  std::thread server_;
  std::unique_ptr<Link> link_;
};

TEST(PsAnnounce, EndsTheSleepOfAServer) {
  std::atomic<bool> slept = false;
  Pair pair([&](Links& links) {
    EXPECT_FALSE(links.next(20s));
    slept = true;
  });
  const auto begin = Clock::now();
  while (!slept) {
    std::this_thread::sleep_for(1ms);  // it sleeps in the kernel, or will soon
    pair.link().announce();
  }
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST(PsAnnounce, OfWhatNeverComesCostsNoBell) {
  Pair pair([](Links&) {});
  int naps = 0;
  for (int i = 0; i < 5; ++i) {
    pair.link().announce();
    std::this_thread::sleep_for(5ms);  // it sleeps again
    const auto begin = Clock::now();
    pair.link().wait(send(pair.link(), kEcho, pattern(8, 1)));
    if (Clock::now() - begin >= 500ms) ++naps;
  }
  EXPECT_LT(naps, 3);  // without a bell it would be the second of a nap each time
}

}  // namespace
}  // namespace tutti::ps::test::announce_test
