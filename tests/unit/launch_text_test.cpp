// Output as lines, messages in pieces, and processes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "launch/machines/mpiexec.hpp"
#include "launch/meeting.hpp"
#include "launch/process/channel.hpp"
#include "launch/process/lists.hpp"
#include "launch/process/process.hpp"
#include "launch/process/text_lines.hpp"
#include "launch/report.hpp"

namespace tutti::launch {
namespace {

using Lines = std::vector<std::string>;

TEST(LaunchText, CutsBetweenCharacters) {
  EXPECT_EQ(whole_characters("abc", 5), 3U);
  EXPECT_EQ(whole_characters("abc", 2), 2U);
  EXPECT_EQ(whole_characters("a\xC3\xA4", 2), 1U);
  EXPECT_EQ(whole_characters("\xE2\x82\xAC\xE2\x82\xAC", 5), 3U);
  EXPECT_EQ(whole_characters("a\xF0\x9F\x98\x80", 4), 1U);
  EXPECT_EQ(whole_characters("\x80\x80\x80\x80\x80\x80", 5), 5U);  // no UTF-8: cut anywhere
  EXPECT_EQ(whole_characters("\xE2\x82\xAC", 2), 2U);              // no room for even one
}

TEST(LaunchText, FindsTheLastLines) {
  EXPECT_EQ(last_lines("", 3), Lines{});
  EXPECT_EQ(last_lines("a\nb\nc", 2), (Lines{"b", "c"}));
  EXPECT_EQ(last_lines("a\nb\n", 5), (Lines{"a", "b"}));
  EXPECT_EQ(last_lines("\n\n", 5), (Lines{"", ""}));
  EXPECT_EQ(last_lines(" 1%\r99%\rdone\r\nx\n", 5), (Lines{"done", "x"}));
}

TEST(LaunchText, KeepsTheEndFromTheBeginningOfALine) {
  Tail tail;
  for (int i = 0; i < 30'000; ++i) tail.append("line " + std::to_string(i) + "\n");
  EXPECT_TRUE(tail.text().starts_with("line "));
  EXPECT_TRUE(tail.text().ends_with("\nline 29999\n"));
  EXPECT_GE(tail.text().size(), 16'000U);
  EXPECT_LE(tail.text().size(), 70'000U);
  Tail one_line;
  one_line.append(std::string(100'000, 'x'));
  EXPECT_GE(one_line.text().size(), 16'000U);
}

TEST(LaunchText, WhoWasKilledComesBeforeThoseWhoEndedForThat) {
  using std::chrono::milliseconds;
  // Of three ranks the second; the third has ended by itself a moment earlier.
  const auto first = [](ExitStatus killed, ExitStatus other, milliseconds earlier) {
    Outcome outcome{.kind = Outcome::Kind::failed, .started = {}, .ends = std::vector<RankEnd>(3)};
    outcome.ends[1].status = killed;
    outcome.ends[2].status = other;
    outcome.ends[1].when = outcome.started + earlier;
    return outcome.first_failure() - outcome.ends.data();
  };
  const ExitStatus killed{.signal = SIGKILL};
  const ExitStatus one{.code = 1};
  const ExitStatus aborted{.signal = SIGABRT};
  EXPECT_EQ(first(killed, one, milliseconds(5)), 1);
  EXPECT_EQ(first(killed, aborted, milliseconds(5)), 1);
  EXPECT_EQ(first(killed, one, milliseconds(1000)), 2);
  EXPECT_EQ(first(one, one, milliseconds(5)), 2);
  EXPECT_EQ(first(aborted, one, milliseconds(5)), 2);
  EXPECT_EQ(first({.signal = SIGTERM}, one, milliseconds(5)), 2);
  EXPECT_EQ(first(killed, {.signal = SIGSEGV}, milliseconds(5)), 2);
}

TEST(LaunchText, WhomAnExceptionEndsComesBeforeThoseWhoEndedForThat) {
  using std::chrono::milliseconds;
  const auto first = [](milliseconds earlier, bool other_failing = false) {
    Outcome outcome{.kind = Outcome::Kind::failed, .started = {}, .ends = std::vector<RankEnd>(3)};
    for (RankEnd& end : outcome.ends) end.status.code = 1;
    outcome.ends[0].when = outcome.ends[1].when = outcome.started + earlier;
    outcome.ends[1].cause = Cause::own;
    if (other_failing) outcome.ends[2].cause = Cause::own;
    return outcome.first_failure() - outcome.ends.data();
  };
  EXPECT_EQ(first(milliseconds(5)), 1);
  EXPECT_EQ(first(milliseconds(1000)), 2);
  EXPECT_EQ(first(milliseconds(5), true), 2);
}

TEST(LaunchText, WhoEndedForAnotherComesAfterThoseWhoMayBeThat) {
  using std::chrono::milliseconds;
  Outcome outcome{.kind = Outcome::Kind::failed, .started = {}, .ends = std::vector<RankEnd>(3)};
  for (RankEnd& end : outcome.ends) end.status.code = 1;
  const auto first = [&] { return outcome.first_failure() - outcome.ends.data(); };
  outcome.ends[0].cause = Cause::another;
  for (RankEnd& end : std::span(outcome.ends).subspan(1)) {
    end.when = outcome.started + milliseconds(5);
  }
  outcome.ends[2].when += milliseconds(1);
  EXPECT_EQ(first(), 1);
  outcome.ends[1].cause = Cause::another;
  EXPECT_EQ(first(), 2);
  outcome.ends[2].cause = Cause::another;
  EXPECT_EQ(first(), 0);
}

TEST(LaunchText, NamesTheFirstOfManyThatWereToldToEnd) {
  const auto told = [](std::size_t ranks) {
    Plan plan;
    plan.ranks.resize(ranks);
    Outcome outcome{
        .kind = Outcome::Kind::failed, .started = {}, .ends = std::vector<RankEnd>(ranks)};
    for (std::size_t i = 0; i < ranks; ++i) {
      plan.ranks[i].index = static_cast<int>(i);
      outcome.ends[i].after_stop = true;
    }
    outcome.ends[0].after_stop = false;
    outcome.ends[0].status.code = 7;
    const std::string text = report_text(plan, outcome);
    return text.substr(text.find("told to end"));
  };
  EXPECT_EQ(told(3), "told to end: worker 1, worker 2");
  EXPECT_TRUE(told(33).ends_with(", worker 31, worker 32"));
  EXPECT_TRUE(told(510).ends_with(", worker 31, worker 32 and 477 more"));
}

TEST(LaunchText, MakesLinesOfPieces) {
  const std::string text = "one\ntwo\r\n 1%\r 2%\rthree\n\n" + std::string(40'000, 'x') + "\nend";
  for (const std::size_t piece : {1UL, 7UL, 1000UL, text.size()}) {
    LineBuffer buffer;
    Lines lines;
    const auto take = [&](std::string_view line) { lines.emplace_back(line); };
    for (std::size_t at = 0; at < text.size(); at += piece)
      buffer.append(text.substr(at, piece), take);
    ASSERT_FALSE(buffer.empty());
    buffer.finish(take);
    ASSERT_EQ(lines.size(), 8U);
    EXPECT_EQ(Lines(lines.begin(), lines.begin() + 4), (Lines{"one", "two", "three", ""}));
    EXPECT_EQ(lines[4] + lines[5] + lines[6], std::string(40'000, 'x'));
    EXPECT_EQ(lines[7], "end");
  }
}

TEST(LaunchChannel, KeepsWhatTheOtherEndDoesNotTakeYet) {
  auto [one, other] = connected_pair();
  Channel from(std::move(one));
  Channel to(std::move(other));
  std::string expected;
  for (int i = 0; i < 300; ++i) {
    const std::string text(static_cast<std::size_t>(i * 37), static_cast<char>('a' + i % 26));
    from.send(i % 2 == 0 ? MessageType::out : MessageType::err, text);
    expected += (i % 2 == 0 ? "o" : "e") + text;
  }
  EXPECT_GT(from.unsent(), 0U);
  std::string received;
  const auto take = [&](MessageType type, std::string_view text) {
    received += (type == MessageType::out ? "o" : "e") + std::string(text);
  };
  while (from.unsent() > 0) {
    from.flush();
    EXPECT_TRUE(to.receive(take));
  }
  from.close();
  while (to.receive(take)) {
  }
  EXPECT_EQ(received, expected);
}

TEST(LaunchChannel, OutlivesItsOtherEnd) {
  auto [one, other] = connected_pair();
  Channel channel(std::move(one));
  Channel(std::move(other)).send(MessageType::closed, "last words");
  channel.send(MessageType::out, "lost");
  EXPECT_EQ(channel.unsent(), 0U);
  channel.flush();
  std::string received;
  const auto take = [&](MessageType, std::string_view text) { received += text; };
  while (channel.receive(take)) {
  }
  EXPECT_EQ(received, "last words");
}

TEST(LaunchProcess, ThatCannotBeBoundSaysSoAndRuns) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  ProcessStart start;
  start.arguments = {"/bin/true"};
  start.standard[2] = write_end.get();
  start.cpus = {CPU_SETSIZE - 1};
  const pid_t child = start_process(start);
  write_end.reset(-1);
  std::array<char, 200> text{};
  ASSERT_GE(::read(read_end.get(), text.data(), text.size() - 1), 0);
  EXPECT_NE(std::string(text.data()).find("cannot bind to processors"), std::string::npos);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/** Somebody who has found the launcher's port. */
FileDescriptor call(const Meeting& meeting) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string port = split_list(meeting.addresses_for({{.name = "127.0.0.1"}}), ':').at(1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0);
  return socket;
}

TEST(LaunchMeeting, HearsNobodyOutWhoHasNotProvedHimself) {
  Meeting meeting;
  const auto nobody = [](const Caller&, Channel) { FAIL(); };
  const FileDescriptor caller = call(meeting);
  while (meeting.descriptors().size() == 1) meeting.step(nobody);
  std::string message(8 << 10, 'x');  // the beginning of one of 4 GiB
  message[0] = static_cast<char>(MessageType::hello);
  std::memset(message.data() + 1, 0xFF, 4);
  ASSERT_EQ(::send(caller.get(), message.data(), message.size(), MSG_NOSIGNAL),
            std::ssize(message));
  timeval limit{.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(caller.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  for (int i = 0; i < 1000 && meeting.descriptors().size() > 1; ++i) meeting.step(nobody);
  char byte = 0;
  EXPECT_LE(::recv(caller.get(), &byte, 1, 0), 0);
  EXPECT_EQ(meeting.descriptors().size(), 1U);
  meeting.close();
  EXPECT_EQ(meeting.descriptors(), std::vector<int>{-1});
}

TEST(LaunchText, OfWhatMpiexecSaysTheCauseIsKept) {
  EXPECT_EQ(mpiexec_said("no route\n-----\n\nAn ORTE daemon failed\n"),
            "no route\nAn ORTE daemon failed");
  std::string long_winded = "no route\n";
  for (int i = 1; i < 40; ++i) long_winded += std::to_string(i) + "\n";
  EXPECT_EQ(mpiexec_said(long_winded),
            "no route\n1\n2\n3\n4\n5\n6\n7\n8\n...\n32\n33\n34\n35\n36\n37\n38\n39");
}

}  // namespace
}  // namespace tutti::launch
