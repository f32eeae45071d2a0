// Log lines that a caller takes instead of stderr.
#include "tutti/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "tutti/communicator.hpp"

namespace tutti {
namespace {

TEST(LogSink, TakesTheLinesThatItWants) {
  std::vector<std::pair<LogLevel, std::string>> lines;
  set_log_sink(
      {[](LogLevel level) { return level <= LogLevel::info; },
       [&](LogLevel level, std::string_view message) { lines.emplace_back(level, message); }});
  EXPECT_TRUE(log_enabled(LogLevel::info));
  EXPECT_FALSE(log_enabled(LogLevel::debug));
  log(LogLevel::debug, "left out");
  log(LogLevel::error, "told");
  { const Communicator communicator(0, 1, UniqueId::create()); }
  set_log_sink({});
  log(LogLevel::debug, "nobody wants this");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], std::pair(LogLevel::error, std::string("told")));
  EXPECT_EQ(lines[1].first, LogLevel::info);
  EXPECT_NE(lines[1].second.find("shared memory"), std::string::npos) << lines[1].second;
}

TEST(LogSink, LeavesStderrAlone) {
  set_log_sink({[](LogLevel) { return true; }, [](LogLevel, std::string_view) {}});
  ::testing::internal::CaptureStderr();
  log(LogLevel::error, "into the sink");
  set_log_sink({});
  log(LogLevel::error, "onto stderr");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "tutti error: onto stderr\n");
}

}  // namespace
}  // namespace tutti
