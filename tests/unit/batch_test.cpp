// Messages that are waited for together, when news of a failure come meanwhile.
#include "comm/batch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "comm/signature.hpp"
#include "tutti/error.hpp"
#include "unit/scripted_wire.hpp"

namespace tutti {
namespace {

TEST(BatchTest, NewsOfAMismatchEndNoWaitWhoseMessagesHaveCome) {
  test::ScriptedWire wire(0);
  wire.delivers = false;
  wire.at_look = [&wire] {
    wire.delivers = true;  // has come meanwhile
    throw MismatchError("of a later call");
  };
  int value = 0;
  Batch batch(wire, Wire::Traffic::collective);
  batch.recv(&value, sizeof value, 1);
  EXPECT_NO_THROW(batch.wait());
  EXPECT_TRUE(batch.done());
}

TEST(BatchTest, NewsOfAMismatchEndAWaitForWhatDoesNotCome) {
  test::ScriptedWire wire(0);
  wire.delivers = false;
  wire.at_look = [] { throw MismatchError("of this call"); };
  int value = 0;
  Batch batch(wire, Wire::Traffic::collective);
  batch.recv(&value, sizeof value, 1);
  EXPECT_THROW(batch.wait(), MismatchError);
}

TEST(BatchTest, AMismatchThatIsFoundHereEndsAWaitThoughMessagesCome) {
  test::ScriptedWire wire(0);
  wire.delivers = false;
  wire.at_look = [&wire] {
    wire.delivers = true;  // of another call, maybe
    throw OneSidedMismatch("of this call");
  };
  int value = 0;
  Batch batch(wire, Wire::Traffic::collective);
  batch.recv(&value, sizeof value, 1);
  EXPECT_THROW(batch.wait(), OneSidedMismatch);
  EXPECT_FALSE(batch.done());
}

TEST(BatchTest, AWaitForSomeHearsOfEachAndLeavesWhatIsPostedMeanwhile) {
  test::ScriptedWire wire(0);
  std::array<int, 3> values{};
  std::vector<int> sources;
  Batch batch(wire, Wire::Traffic::collective);
  batch.send(&values[0], sizeof(int), 1);
  for (const int source : {1, 2})
    batch.recv(&values.at(static_cast<std::size_t>(source)), sizeof(int), source);
  const auto received = [&](int source) {
    sources.push_back(source);
    batch.recv(&values[0], sizeof(int), source);
    return sources.size() == 2;
  };
  batch.wait_until(received);
  EXPECT_EQ(sources, (std::vector{1, 2}));
  EXPECT_FALSE(batch.done());
  batch.wait();
  EXPECT_TRUE(batch.done());
  EXPECT_EQ(sources.size(), 2U);
}

/** A wait in which three parts of a message move before its end, fast or not. */
void wait_for_parts(test::ScriptedWire& wire, bool fast) {
  wire.delivers = false;
  wire.parts = 4;
  wire.flows = fast;
  wire.at_pause = [&] { wire.delivers = wire.parts <= 0; };
  std::byte data{};
  Batch batch(wire, Wire::Traffic::collective);
  batch.recv(&data, 1, 1);
  batch.wait();
  EXPECT_EQ(wire.restarts, 4);
}

TEST(BatchTest, PartsThatMoveKeepADeadlineOffAndWakeNobody) {
  test::ScriptedWire wire(0);
  wait_for_parts(wire, false);
  using Milliseconds = std::chrono::milliseconds;
  const std::vector<Wire::Clock::duration> longer{Milliseconds(0), Milliseconds(1), Milliseconds(2),
                                                  Milliseconds(3)};
  EXPECT_EQ(wire.stills, longer);
}

TEST(BatchTest, PartsThatMoveFastKeepAWaitAwake) {
  test::ScriptedWire wire(0);
  wait_for_parts(wire, true);
  EXPECT_EQ(wire.stills, std::vector<Wire::Clock::duration>(4));
}

std::vector<std::size_t> pieces_of(test::ScriptedWire& wire, std::size_t bytes) {
  const std::vector<std::byte> data(bytes);
  Batch batch(wire, Wire::Traffic::collective);
  batch.send(data.data(), std::ssize(data), 1);
  batch.wait();
  std::vector<std::size_t> pieces;
  for (const auto& message : wire.sent) pieces.push_back(message.bytes.size());
  return pieces;
}

TEST(BatchTest, MessagesTravelInPiecesAsLongAsTheWireHasThem) {
  constexpr std::size_t kBytes = 600 << 10;
  test::ScriptedWire wire(0);
  EXPECT_EQ(pieces_of(wire, kBytes), std::vector<std::size_t>(10, Wire::kPiece));
  test::ScriptedWire connections(0);
  connections.most = 512 << 10;
  EXPECT_EQ(pieces_of(connections, kBytes), (std::vector<std::size_t>{512 << 10, 88 << 10}));
}

}  // namespace
}  // namespace tutti
