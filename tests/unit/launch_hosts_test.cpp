// Lists of machines as people, files and resource managers write them.
#include "launch/machines/hosts.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "comm/shm/memory/control.hpp"
#include "launch/machines/answer.hpp"
#include "launch/machines/check.hpp"
#include "launch/machines/machine.hpp"
#include "launch/placement.hpp"
#include "launch/process/lists.hpp"
#include "support/folder.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

std::string text_of(const std::vector<Host>& hosts) {
  std::vector<std::string> items;
  for (const Host& host : hosts) items.push_back(host.name + ":" + std::to_string(host.slots));
  return join_list(items);
}

/** What the action refuses. */
template <class Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

std::string in_file(const std::string& text) {
  const test::Folder folder;
  const std::string path = folder / "hosts";
  std::ofstream(path) << text;
  try {
    return text_of(read_hostfile(path));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(LaunchHosts, OfAnOption) {
  EXPECT_EQ(text_of(parse_hosts("--hosts", "a:2,b:1")), "a:2,b:1");
  EXPECT_EQ(text_of(parse_hosts("--hosts", "a,b")), "a:0,b:0");
  EXPECT_EQ(text_of(parse_hosts("--hosts", "a,b,a")), "a:2,b:0");
  for (const char* wrong : {"a:", ":2", "a:0", "a:x", "a,,b", "a:2:3"}) {
    EXPECT_NE(refusal_of([&] { parse_hosts("--hosts", wrong); }).find("--hosts has '"),
              std::string::npos)
        << wrong;
  }
}

TEST(LaunchHosts, WhatCannotBeANameIsRefusedWhereverItComesFrom) {
  for (const std::string name : {"-oProxyCommand=x", "a b", "a\n"}) {
    const std::vector<std::vector<std::string>> commands{
        {"--hosts=b," + name, "true"},
        {"--ips=" + name, "true"},
        {"--servers=" + name + ":1", "--workers=b:1", "true"}};
    for (const auto& arguments : commands) {
      EXPECT_EQ(refusal_of([&] { machines_of(parse_run(arguments), {}); }),
                "'" + name + "' cannot be the name of a machine");
    }
  }
}

TEST(LaunchHosts, NamedTwiceByTwoNamesAreOne) {
  Machine machine;
  machine.name = "m";
  EXPECT_EQ(text_of(machines_of(parse_run({"--hosts=localhost:1,b:1,m:2", "true"}), machine)),
            "m:3,b:1");
}

TEST(LaunchHosts, HavePortsThatOptionsName) {
  const std::vector<Host> hosts = machines_of(
      parse_run({"--servers=a:7,b:8", "--workers=a:9,b", "--http_port=6", "true"}), Machine());
  EXPECT_EQ(hosts, (std::vector<Host>{{"a", 2, {9, 7, 6}}, {"b", 2, {8}}}));
}

TEST(LaunchHosts, OfAFileInOpenMpisForm) {
  EXPECT_EQ(
      in_file("# two\nnode1 slots=2\n\n  node2  slots=3 max_slots=4 # more\nnode3\nnode4:2\n"),
      "node1:2,node2:3,node3:0,node4:2");
  EXPECT_EQ(in_file("a\nb\na\n"), "a:2,b:0");
  EXPECT_NE(in_file("a slots=2\nb slots=two\n").find("line 2: 'b slots=two'"), std::string::npos);
  EXPECT_NE(in_file("a cores=2\n").find("line 1"), std::string::npos);
  EXPECT_NE(in_file("# none\n").find("names no machine"), std::string::npos);
  EXPECT_EQ(refusal_of([] { read_hostfile("/"); }), "--hostfile /: Is a directory");
  EXPECT_NE(refusal_of([] { read_hostfile("/nowhere/hosts"); }).find("/nowhere/hosts"),
            std::string::npos);
}

TEST(LaunchHosts, OfSlurmsLists) {
  const auto nodes = [](const char* text) { return join_list(expand_nodes(text)); };
  EXPECT_EQ(nodes("n1"), "n1");
  EXPECT_EQ(nodes("n[1-3,7],head"), "n1,n2,n3,n7,head");
  EXPECT_EQ(nodes("a[08-11],b[1,3]"), "a08,a09,a10,a11,b1,b3");
  for (const char* wrong : {"n[1-3", "n[x]", "n[3-1]", "n[1]x", "n[1-9999999999]"}) {
    EXPECT_NE(refusal_of([&] { expand_nodes(wrong); }).find("list of nodes"), std::string::npos)
        << wrong;
  }
}

/** Of gtest's death tests: ends a child of this process, whose environment it may change. */
[[noreturn]] void say_allocated(const std::vector<std::pair<std::string, std::string>>& variables) {
  for (const char* name : {"SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
                           "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "PBS_NODEFILE"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  std::string text;
  try {
    check_alone_in_step();
    text = text_of(allocated_hosts());
  } catch (const Error& error) {
    text = error.what();
  }
  std::fprintf(stderr, "[%s]", text.c_str());
  std::_Exit(0);
}

TEST(LaunchHosts, OfAResourceManager) {
  const auto expect = [](const std::vector<std::pair<std::string, std::string>>& variables,
                         const char* expected) {
    EXPECT_EXIT(say_allocated(variables), ::testing::ExitedWithCode(0), expected);
  };
  expect({}, "\\[\\]");
  expect({{"SLURM_JOB_NODELIST", "n[1-3]"},
          {"SLURM_TASKS_PER_NODE", "2(x2),1"},
          {"SLURM_NTASKS", "5"}},
         "\\[n1:2,n2:2,n3:1\\]");
  expect({{"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "1(x2)"}}, "\\[n1:0,n2:0\\]");
  expect({{"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_STEP_NUM_TASKS", "2"}}, "srun has started 2");
  const test::Folder folder;
  const std::string path = folder / "nodes";
  std::ofstream(path) << "x\nx\ny\n";
  expect({{"PBS_NODEFILE", path}}, "\\[x:2,y:1\\]");
}

TEST(LaunchHosts, AnswerAmongWhateverElseIsPrinted) {
  const auto answers = find_answers(
      "Warning: Permanently added 'b'\ntutti-answer 1 name b\ntutti-answer 0 fault no x on a\n"
      "tutti-answer 1 mpi \ntutti-answer x name c\ntutti-answer 2\ntutti-answer 3 name\n");
  EXPECT_EQ(answers, (std::map<std::size_t, Facts>{{0, {{"fault", "no x on a"}}},
                                                   {1, {{"name", "b"}, {"mpi", ""}}}}));
}

TEST(LaunchHosts, AreAskedThroughAShellThatReadsTheWordsAsTheyAre) {
  EXPECT_EQ(shell_text({"a b", "it's", "$x"}), "'a b' 'it'\\''s' '$x'");
}

TEST(LaunchMachine, HasRoomForWhatRanksNeedToMeet) {
  for (const int ranks : {1, 8, 64, 256}) {
    EXPECT_LE(shm::Control::bytes_for(ranks), ranks * kSharedBytesPerRank) << ranks;
  }
}

}  // namespace
}  // namespace tutti::launch
