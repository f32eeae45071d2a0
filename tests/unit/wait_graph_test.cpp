// What a process answers to who asks it whom it waits for.
#include "comm/failures/wait_graph.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <variant>

#include "unit/scripted_network.hpp"

namespace tutti::test {
namespace {

/** Of a process that waits for `awaited` others. */
Answer answer_of(int awaited) {
  ScriptedNetwork network(awaited + 1);
  WaitGraph& graph = network.wait_graph();
  graph.add(network, 1);
  network.come.push_back({Question{}, 1});
  graph.poll(network, std::span(network.members).subspan(1), network.members);
  const auto* const answer =
      network.sent.size() == 1 ? std::get_if<Answer>(&network.sent.front().message) : nullptr;
  if (answer == nullptr) {
    ADD_FAILURE() << "a question has " << network.sent.size() << " answers";
    return {};
  }
  return *answer;
}

/** Of those that it does not name one may be to blame. */
TEST(WaitGraph, WhoWaitsForMoreThanAnAnswerHasRoomForSaysSo) {
  constexpr auto kMost = static_cast<int>(Answer::kMost);
  for (const int awaited : {1, kMost, kMost + 1, kMost + 40}) {
    const Answer answer = answer_of(awaited);
    const auto names =
        std::span(answer.entries).first(static_cast<std::size_t>(answer.awaited_count));
    const bool says_so = std::count(names.begin(), names.end(), Answer::kUnknown) == 1;
    EXPECT_EQ(answer.awaited_count, std::min(awaited, kMost));
    EXPECT_EQ(says_so, awaited > kMost) << awaited;
  }
}

}  // namespace
}  // namespace tutti::test
