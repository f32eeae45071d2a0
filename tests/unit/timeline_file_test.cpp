// Trace files: complete after every append, whoever writes and whoever dies; and what a Trace puts
// into them.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/record/lateness.hpp"
#include "comm/record/trace.hpp"
#include "comm/record/trace_file.hpp"
#include "support/folder.hpp"
#include "tutti/error.hpp"

namespace tutti::record {
namespace {

constexpr std::string_view kEnd = "\n]}\n";

class TraceFiles : public ::testing::Test {
 protected:
  std::string text() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path path() const { return folder_ / "run.json"; }

 private:
  test::Folder folder_;
};

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST_F(TraceFiles, IsCompleteAfterEveryAppendOfSeveralWriters) {
  constexpr int kWriters = 3;
  constexpr int kEvents = 50;
  TraceFile::create(path(), "this run");
  std::vector<std::thread> writers;
  writers.reserve(kWriters);
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&] {
      std::optional<TraceFile> file = TraceFile::open(path(), "this run");
      ASSERT_TRUE(file);
      for (int i = 0; i < kEvents; ++i) EXPECT_TRUE(file->append(R"({"name": "event"})"));
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(occurrences(text(), "{\"name\": \"event\"}"), kWriters * kEvents);
  EXPECT_EQ(occurrences(text(), "},\n{"), kWriters * kEvents);
  EXPECT_TRUE(text().ends_with(kEnd));
}

TEST_F(TraceFiles, LosesOnlyWhatAWriterLeftHalfWritten) {
  TraceFile::create(path(), "this run");
  std::optional<TraceFile> file = TraceFile::open(path(), "this run");
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->append("{\"name\": \"first\"}"));
  std::string half = text();
  half.resize(half.size() - kEnd.size());
  half += ",\n{\"name\": \"second\"},\n{\"name\": \"thi";
  std::ofstream(path()) << half;
  EXPECT_TRUE(file->append("{\"name\": \"fourth\"}"));
  EXPECT_TRUE(text().ends_with(
      "{\"name\": \"first\"},\n{\"name\": \"second\"},\n{\"name\": \"fourth\"}\n]}\n"))
      << text();
}

TEST_F(TraceFiles, IsCompleteWhereTheDiskIsFull) {
  TraceFile::create(path(), "this run");
  std::optional<TraceFile> file = TraceFile::open(path(), "this run");
  ASSERT_TRUE(file);
  const std::string before = text();
  rlimit own{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &own), 0);
  const rlimit little{before.size() + 10, own.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  EXPECT_FALSE(file->append("{\"name\": \"too long for what is left\"}"));
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &own), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(text(), before);
  EXPECT_TRUE(file->append("{\"name\": \"next\"}"));
}

TEST_F(TraceFiles, OfAnotherRunIsLeftAlone) {
  EXPECT_FALSE(TraceFile::open(path(), "this run"));
  TraceFile::create(path(), "this run");
  EXPECT_FALSE(TraceFile::open(path(), "another run"));
  std::filesystem::create_symlink(path(), path().string() + ".link");
  EXPECT_FALSE(TraceFile::open(path().string() + ".link", "this run"));
  EXPECT_THROW(TraceFile::create(path().parent_path(), "this run"), InvalidArgument);
}

TEST_F(TraceFiles, AForkedChildLeavesItsParentsTraceAtOnce) {
  TraceFile::create(path(), "this run");
  auto trace = std::make_unique<Trace>(*TraceFile::open(path(), "this run"), TracedRank{});
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    trace->add({});
    trace.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "it hangs, or ends otherwise";
}

TEST_F(TraceFiles, HasTheSlicesOfATraceWithTheirLanes) {
  TraceFile::create(path(), "this run");
  {
    const std::int64_t origin = TickClock::monotonic();
    Trace trace(*TraceFile::open(path(), "this run"), {3, "rank 3 on \"here\"", origin});
    {
      Span step(&trace, "step");
      step.say({"bytes", 4096});
      step.say({"way", "one shot"});
      const Span inner(&trace, "backward");
    }
    std::thread([&] { const Span other(&trace, "all_reduce"); }).join();
    trace.flush();
    EXPECT_EQ(occurrences(text(), "\"ph\":\"X\""), 3U);
    EXPECT_TRUE(text().ends_with(kEnd));
    { const Span last(&trace, "last"); }
  }
  EXPECT_EQ(occurrences(text(), R"({"ph":"X","pid":3,)"), 4U) << text();
  EXPECT_NE(text().find(R"("process_name","args":{"name":"rank 3 on \"here\""}})"),
            std::string::npos)
      << text();
  EXPECT_NE(text().find(R"("name":"step","args":{"bytes":4096,"way":"one shot"}})"),
            std::string::npos)
      << text();
  EXPECT_EQ(occurrences(text(), R"("thread_name","args":{"name":"main"})"), 1U);
  EXPECT_EQ(occurrences(text(), R"("thread_name","args":{"name":"stream 1"})"), 1U);
}

TEST(Lateness, FindsTheRankThatCostsMoreThanATenthOfAHundredCalls) {
  Lateness lateness(4);
  std::uint64_t now = 1000;
  std::optional<Lateness::Finding> finding;
  const auto window = [&](std::uint64_t of_rank_1, std::uint64_t of_rank_3) {
    for (int call = 0; call < Lateness::kCalls; ++call) {
      lateness.add(1, of_rank_1);
      lateness.add(3, of_rank_3);
      now += 100;
      finding = lateness.count(now);
    }
  };
  window(50, 40);  // when the first window began is not known
  EXPECT_FALSE(finding);
  window(9, 9);
  EXPECT_FALSE(finding);
  window(9, 12);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, 3);
  EXPECT_DOUBLE_EQ(finding->share, 0.12);
  window(60, 12);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, 1);
  EXPECT_EQ(lateness.waited()[3], 100U * (40 + 9 + 12 + 12));
}

TEST(TickScale, GoesFromOneAnchorToTheOther) {
  const TickScale scale({100, 5000}, {1100, 5500});
  EXPECT_EQ(scale.nanoseconds(100), 5000);
  EXPECT_EQ(scale.nanoseconds(600), 5250);
  EXPECT_EQ(scale.nanoseconds(1100), 5500);
  EXPECT_EQ(scale.length(10), 5);
  EXPECT_EQ(TickScale({7, 7}, {7, 7}).nanoseconds(9), 9);  // no time between them
}

}  // namespace
}  // namespace tutti::record
