// What a rank tells the others of a failure, and who of its threads.
#include "comm/failures/watch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <variant>

#include "tutti/error.hpp"
#include "unit/scripted_network.hpp"

namespace tutti::test {
namespace {

/** What the messages say that have been sent, to ranks in their order. */
std::string told(const ScriptedNetwork& network) {
  std::string text;
  for (const auto& [message, peer] : network.sent) {
    const auto* const report = std::get_if<FailureReport>(&message);
    text += std::to_string(peer) + ": ";
    text += report == nullptr ? "?" : report->text_value();
    text += "; ";
  }
  return text;
}

/** As where MPI was initialised without MPI_THREAD_MULTIPLE, and a thread of the program waits for
 * a key of a Store. */
TEST(Watch, AThreadThatMayNotSendLeavesTheNewsToOneThatMay) {
  constexpr std::array kLost{1};
  constexpr std::array kOther{2};
  ScriptedNetwork network(3);
  Watch watch(network, network.members, 0, 1, std::chrono::seconds(1));
  network.this_thread_may = false;
  watch.announce_lost(kLost, "it has ended");
  EXPECT_EQ(told(network), "");
  network.this_thread_may = true;
  EXPECT_THROW(watch.poll({}), PeerLost);
  watch.announce_mismatch("they differ");
  EXPECT_EQ(told(network), "");
  watch.announce_lost(kOther, "it does not answer");  // of a thread that has not heard of that
  EXPECT_EQ(told(network), "1: it has ended; 2: it has ended; ");
  watch.announce_lost(kLost, "it has ended");
  EXPECT_EQ(network.sent.size(), 2U);
}

}  // namespace
}  // namespace tutti::test
