// The exception tree and its messages.
#include "tutti/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace tutti {
namespace {

template <class Derived, class Base>
constexpr bool kIsA = std::is_convertible_v<const Derived&, const Base&>;

TEST(Error, IsOneTree) {
  EXPECT_TRUE((kIsA<Error, std::runtime_error>));
  EXPECT_TRUE((kIsA<InvalidArgument, Error>));
  EXPECT_TRUE((kIsA<SystemError, Error>));
  EXPECT_TRUE((kIsA<BackendUnavailable, Error>));
  EXPECT_TRUE((kIsA<PeerLost, CommunicationError>));
  EXPECT_TRUE((kIsA<MismatchError, CommunicationError>));
  EXPECT_TRUE((kIsA<CommunicationError, Error>));
  EXPECT_FALSE((kIsA<InvalidArgument, CommunicationError>));
}

TEST(Error, PeerLostNamesItsRanksInOrderAndOnce) {
  const PeerLost error({7, 2, 7, 11}, "did not answer");
  EXPECT_EQ(error.ranks(), (std::vector<int>{2, 7, 11}));
  EXPECT_STREQ(error.what(), "lost rank 2, rank 7, rank 11: did not answer");
}

TEST(Error, PeerLostOfOneRank) {
  EXPECT_STREQ(PeerLost({3}, "ended").what(), "lost rank 3: ended");
}

TEST(Error, SystemErrorTellsTheCallAndTheReason) {
  const SystemError error("cannot open it", ENOENT);
  EXPECT_EQ(error.error_number(), ENOENT);
  EXPECT_STREQ(error.what(), "cannot open it: No such file or directory");
}

}  // namespace
}  // namespace tutti
