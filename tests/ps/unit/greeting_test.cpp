// What servers and workers tell each other when they begin, and when they cannot.
#include "ps/greeting.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <exception>
#include <new>
#include <string>

#include "ps/failure.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

using tutti::test::text_of;

/** What is thrown elsewhere when `error` is told there. */
template <class Error>
std::string text_elsewhere(const Error& error) {
  const Failure failure = Failure::of(std::make_exception_ptr(error)).at("server 1");
  return text_of<Error>([&] { Failure::decode(failure.encode()).raise(); });
}

TEST(Failure, IsThrownElsewhereAsItWas) {
  EXPECT_EQ(text_elsewhere(InvalidArgument("file a\n\nis cut short")),
            "server 1: file a\n\nis cut short");
  EXPECT_EQ(text_elsewhere(SystemError("cannot reserve 8 bytes", ENOMEM)),
            "server 1: cannot reserve 8 bytes: Cannot allocate memory");
  EXPECT_EQ(text_elsewhere(PeerLost({3, 1}, "worker 1: gone")),
            "lost rank 1, rank 3: server 1: worker 1: gone");
  EXPECT_EQ(text_elsewhere(MismatchError("two")), "server 1: two");
}

TEST(Failure, WantOfMemoryIsASystemError) {
  const Failure failure = Failure::of(std::make_exception_ptr(std::bad_alloc()));
  EXPECT_EQ(text_of<SystemError>([&] { failure.raise(); }),
            "cannot allocate memory: Cannot allocate memory");
}

TEST(Failure, DecodesWhateverComes) {
  for (const char* bytes : {"", "\n", "9\n9\n9", "-1\nx\ny\n\nz", "1"}) {
    EXPECT_THROW(Failure::decode(bytes).raise(), Error) << bytes;
  }
}

TEST(Greeting, ComesAsItWas) {
  Greeting greeting;
  const Greeting fresh = Greeting::decode(greeting.encode());
  EXPECT_EQ(fresh.memory, greeting.memory);
  EXPECT_FALSE(fresh.loaded);
  EXPECT_FALSE(fresh.failure);
  EXPECT_EQ(fresh.table_segment(3), greeting.table_segment(3));
  EXPECT_NE(fresh.table_segment(3), greeting.table_segment(4));
  greeting.loaded = 7;
  EXPECT_EQ(Greeting::decode(greeting.encode()).loaded, 7);
  EXPECT_EQ(Greeting::decode(greeting.encode()).memory, greeting.memory);
  greeting.failure = Failure{Failure::Kind::system, ENOSPC, {}, "no room"};
  ASSERT_TRUE(Greeting::decode(greeting.encode()).failure);
  EXPECT_EQ(Greeting::decode(greeting.encode()).failure->text, "no room");
}

TEST(Greeting, WhatIsNoneIsRefused) {
  EXPECT_THROW(Greeting::decode(""), CommunicationError);
  EXPECT_THROW(Greeting::decode("new 12"), InvalidArgument);
  EXPECT_THROW(Greeting::decode("loaded"), CommunicationError);
  EXPECT_THROW(Greeting::decode("loaded x 12"), CommunicationError);
  EXPECT_THROW(Greeting::decode("loaded 12"), InvalidArgument);
}

}  // namespace
}  // namespace tutti::ps
