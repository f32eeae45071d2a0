// Messages that are waited for together, when news of a failure come meanwhile.
#include "comm/batch.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tutti
