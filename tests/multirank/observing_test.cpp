// What the ranks see of each other: timelines, the flight recorder, and who keeps the others
// waiting.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/record/clock.hpp"
#include "comm/record/clock_offset.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"
#include "tutti/log.hpp"
#include "tutti/timeline.hpp"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

/** Copies the log of this process, which may be that of several ranks. */
class LogCopy {
 public:
  explicit LogCopy(LogLevel most = LogLevel::warn) {
    set_log_sink({[most](LogLevel level) { return level <= most; },
                  [this](LogLevel, std::string_view message) {
                    const std::lock_guard lock(mutex_);
                    lines_.emplace_back(message);
                  }});
  }
  LogCopy(const LogCopy&) = delete;
  LogCopy& operator=(const LogCopy&) = delete;
  ~LogCopy() { set_log_sink({}); }

  std::int64_t count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    std::int64_t found = 0;
    for (const std::string& line : lines_) found += line.find(part) != std::string::npos ? 1 : 0;
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

class Observing : public RankTest {
 protected:
  /** The same for all ranks, and for no other run. Collective. */
  static fs::path folder_of(Communicator& comm) {
    std::array<char, 32> path{"/tmp/tutti_observing_XXXXXX"};
    if (comm.global_rank() == 0) {
      EXPECT_NE(::mkdtemp(path.data()), nullptr);
    }
    comm.broadcast(View(path.data(), std::ssize(path), DType::u8), 0);
    return path.data();
  }
  static std::string text_of(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::int64_t occurrences(const std::string& text, const std::string& part) {
    std::int64_t count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++count;
    }
    return count;
  }
  static std::int64_t hosts() {
    return std::ssize(std::set<int>(world().hosts.begin(), world().hosts.end()));
  }
};

TEST_F(Observing, TheUserChoosesWhatCarriesCollectivesBetweenHosts) {
  if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  for (const std::string carrier : {"tcp", "mpi"}) {
    ::setenv("TUTTI_BETWEEN_HOSTS", carrier.c_str(), 1);
    LogCopy log(LogLevel::info);
    on_ranks([](Communicator& comm) {
      float sum = 1;
      comm.all_reduce(std::span(&sum, 1));
      EXPECT_EQ(sum, static_cast<float>(ranks()));
    });
    const bool is_first = world().rank == 0;
    EXPECT_EQ(log.count("shared memory inside"), is_first ? 1 : 0);
    EXPECT_EQ(log.count("TCP for collectives"), is_first && carrier == "tcp" ? 1 : 0);
    EXPECT_EQ(log.count("(TUTTI_BETWEEN_HOSTS is mpi)"), is_first && carrier == "mpi" ? 1 : 0);
  }
  ::unsetenv("TUTTI_BETWEEN_HOSTS");
}

TEST_F(Observing, ATimelineHasTheCallsOfAllRanks) {
  on_ranks([](Communicator& comm) {
    const fs::path folder = folder_of(comm);
    const fs::path path = folder / "run.json";
    {
      Timeline timeline(path, comm);
      std::vector<float> few(3);
      std::vector<double> many(20000);
      comm.all_reduce(std::span(few));
      const Stream worker = Stream::worker();
      comm.all_reduce(std::span(many), Reduce::sum, worker).wait();
      auto part = comm.split(comm.global_rank() % 2, 0);
      part->broadcast(std::span(few), 0);
      comm.barrier();
    }
    comm.barrier();  // in no timeline
    const std::string text = text_of(path);
    EXPECT_TRUE(text.ends_with("\n]}\n"));
    EXPECT_EQ(occurrences(text, R"("name":"all_reduce","args":{"number":)"), 2 * ranks()) << text;
    EXPECT_EQ(occurrences(text, R"("dtype":"f64","count":20000,"bytes":160000)"), ranks());
    EXPECT_EQ(occurrences(text, R"("name":"broadcast")"), ranks());
    EXPECT_EQ(occurrences(text, R"("name":"split")"), ranks());
    for (int rank = 0; rank < ranks(); ++rank) {
      const std::string title = R"("process_name","args":{"name":"rank )" + std::to_string(rank) +
                                " of " + std::to_string(ranks()) + " on ";
      EXPECT_EQ(occurrences(text, title), 1) << text;
    }
    EXPECT_EQ(occurrences(text, R"("thread_name","args":{"name":"stream 1"}})"), ranks());
    EXPECT_EQ(occurrences(text, R"("waiting_us":)"), occurrences(text, R"("moving_us":)"));
    comm.barrier();
    if (comm.global_rank() == 0) fs::remove_all(folder);
  });
}

TEST_F(Observing, ATimelineThatCannotBeWrittenIsRefusedOnAllRanks) {
  on_ranks([](Communicator& comm) {
    EXPECT_THROW(Timeline("/no/such/folder/run.json", comm), InvalidArgument);
    comm.barrier();  // is as good as before
  });
}

std::int64_t five_seconds_ahead() { return record::TickClock::monotonic() + 5'000'000'000; }

TEST_F(Observing, ClocksOfOtherMachinesAreMeasured) {
  on_ranks([](Communicator& comm) {
    const bool odd = comm.global_rank() % 2 == 1;
    const record::ClockOffset clock = record::measure_clock(
        comm, odd ? 1 : 0, odd ? &five_seconds_ahead : &record::TickClock::monotonic);
    EXPECT_LE(std::abs(clock.offset - (odd ? 5'000'000'000 : 0)), clock.error);
    EXPECT_EQ(clock.error > 0, odd);
  });
}

TEST_F(Observing, AFailureIsToldOnceAHostWithWhoHadNotReachedWhat) {
  if (ranks() < 2) GTEST_SKIP() << "needs a rank that gives up";
  LogCopy log;
  std::atomic<bool> set = false;
  on_ranks([&](Communicator& comm) {
    const fs::path folder = folder_of(comm) / "flights";  // which is made
    if (!set.exchange(true)) ::setenv("TUTTI_FLIGHT", folder.c_str(), 1);
    const int last = ranks() - 1;
    auto failing = comm.split(0, comm.global_rank());
    std::vector<float> data(2);
    failing->all_reduce(std::span(data));
    failing->barrier();
    if (comm.global_rank() == last) {
      failing->abort("enough");
    } else {
      EXPECT_THROW(failing->all_reduce(std::span(data)), PeerLost);
    }
    comm.barrier();
    if (comm.global_rank() == 0) {
      // A host on which nobody but the rank that gave up is has nothing to tell.
      std::int64_t lonely = 0;
      for (const int host : std::set<int>(world().hosts.begin(), world().hosts.end())) {
        const auto size = std::count(world().hosts.begin(), world().hosts.end(), host);
        if (size == 1 && world().hosts[static_cast<std::size_t>(last)] == host) ++lonely;
      }
      std::vector<std::string> flights;
      for (const auto& entry : fs::directory_iterator(folder)) {
        flights.push_back(text_of(entry.path()));
      }
      EXPECT_EQ(std::ssize(flights), hosts() - lonely);
      for (const std::string& flight : flights) {
        EXPECT_NE(flight.find("\"reason\": \"lost rank " + std::to_string(last)), std::string::npos)
            << flight;
        EXPECT_NE(flight.find("\"operation\": \"all_reduce\", \"dtype\": \"f32\", \"count\": 2, "
                              "\"reduction\": \"sum\", \"state\": \"done\""),
                  std::string::npos)
            << flight;
        EXPECT_NE(flight.find("\"state\": \"running\""), std::string::npos) << flight;
      }
      fs::remove_all(folder.parent_path());
    }
    comm.barrier();
  });
  ::unsetenv("TUTTI_FLIGHT");
  if (hosts() == 1 && world().launch == Launch::threads) {
    // Of three, another may not have come to it, either, when the last gives up.
    const std::string behind = ranks() == 2 ? "rank 1" : "";
    EXPECT_EQ(log.count(behind + " had not reached collective 3, all_reduce(f32, count 2, sum)"),
              1);
  }
}

TEST_F(Observing, LatenessIsThatOfTheRankWhichComesLast) {
  on_ranks([](Communicator& comm) {
    constexpr int kCalls = 30;
    constexpr std::chrono::milliseconds kLate{10};
    const int last = ranks() - 1;
    for (int call = 0; call < kCalls; ++call) {
      if (comm.global_rank() == last) std::this_thread::sleep_for(kLate);
      comm.barrier();
    }
    const std::vector<double> late = comm.lateness();
    ASSERT_EQ(std::ssize(late), ranks());
    if (ranks() == 1) {
      EXPECT_EQ(late.front(), 0);
    } else if (world().one_host()) {  // between hosts what a message takes is not counted
      // Those that wait may be late to see it.
      EXPECT_GT(late.back(), 0.3 * kCalls * std::chrono::duration<double>(kLate).count());
    }
  });
}

TEST_F(Observing, ARootIsLateOnlyByTheTimeThatItWasAway) {
  if (hosts() < 2) GTEST_SKIP() << "needs broadcasts that go one way";
  on_ranks([](Communicator& comm) {
    constexpr int kCalls = 10;
    constexpr std::chrono::milliseconds kLate{10};
    constexpr std::chrono::milliseconds kAtOnce{0};
    constexpr double kHalf = 0.5 * kCalls * std::chrono::duration<double>(kLate).count();
    const auto host_of = [](int rank) { return world().hosts[static_cast<std::size_t>(rank)]; };
    const auto late_once = [&](int root, auto of_root, int neighbour, auto of_neighbour) {
      int value = 0;
      comm.barrier();
      const double before = comm.lateness()[static_cast<std::size_t>(root)];
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < kCalls; ++call) {
        if (comm.global_rank() == root) std::this_thread::sleep_for(of_root);
        if (comm.global_rank() == neighbour) std::this_thread::sleep_for(of_neighbour);
        comm.broadcast(std::span(&value, 1), root);
      }
      // Those who need not wait for the late one do so here, or they would when they are asked.
      std::this_thread::sleep_until(start + 2 * kCalls * kLate);
      return comm.lateness()[static_cast<std::size_t>(root)] - before;
    };
    // Any rank may have to wait for a core: the one in the middle of three.
    const auto late_after = [&](int root, auto of_root, int neighbour, auto of_neighbour) {
      std::array<double, 3> late{};
      for (double& one : late) one = late_once(root, of_root, neighbour, of_neighbour);
      std::sort(late.begin(), late.end());
      return late[1];
    };
    // Of a host of several ranks the first sends to others.
    for (const auto& [root, neighbour] : {std::pair{0, 1}, {1, 0}}) {
      const bool elsewhere = host_of(comm.global_rank()) != host_of(root);
      const double of_root = late_after(root, kAtOnce, neighbour, kLate);
      if (elsewhere) {
        EXPECT_LT(of_root, kHalf) << root;
      }
      const double of_late_root = late_after(root, kLate, neighbour, kAtOnce);
      if (elsewhere) {
        EXPECT_GT(of_late_root, kHalf) << root;
      }
      const bool leads = root == 0 || host_of(root) != host_of(neighbour);
      const double before_its_leader = late_after(root, kLate, neighbour, 2 * kLate);
      if (elsewhere && !leads) {
        EXPECT_LT(before_its_leader, kHalf) << root;
      }
    }
  });
}

TEST_F(Observing, WhoKeepsTheOthersWaitingIsSaidOnceAHost) {
  if (ranks() < 2) GTEST_SKIP() << "needs others";
  LogCopy log;
  on_ranks([&](Communicator& comm) {
    for (int call = 0; call < 250; ++call) {
      if (comm.global_rank() == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      comm.barrier();
    }
    std::int64_t told = 0;
    if (world().launch != Launch::threads || comm.global_rank() == 0) {
      told = log.count(" keeps others waiting: ");
    }
    comm.all_reduce(std::span(&told, 1));
    EXPECT_GE(told, 1);
    EXPECT_LE(told, hosts());
  });
}

}  // namespace
}  // namespace tutti::test
