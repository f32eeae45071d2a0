// Variables of the environment whose names are nearly tutti's.
#include "base/misspelt.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "tutti/communicator.hpp"

namespace tutti {
namespace {

TEST(Misspelt, NamesAreUnderstood) {
  EXPECT_EQ(meant_variable("TUTTI_TIMOUT"), "TUTTI_TIMEOUT");
  EXPECT_EQ(meant_variable("TUTTI_TIMEOUTS"), "TUTTI_TIMEOUT");
  EXPECT_EQ(meant_variable("TUTTI_TIMELNIE"), "TUTTI_TIMELINE");
  EXPECT_EQ(meant_variable("TUTTI_SOCKET_IF_NAME"), "TUTTI_SOCKET_IFNAME");
  EXPECT_EQ(meant_variable("TUTTI_LOG_LEVEL"), "TUTTI_LOG");
}

TEST(Misspelt, TuttisOwnAndOthersAreNot) {
  for (const char* name :
       {"TUTTI_TIMEOUT", "TUTTI_LOG", "TUTTI_RANK", "TUTTI_ROLE_INDEX", "TIMOUT", "TUTTI_DATABASE",
        "TUTTI_TEST_HOSTS", "TUTTI_LAUNCHER", "TUTTI_MODE", "TUTTI_RUN"}) {
    EXPECT_EQ(meant_variable(name), std::nullopt) << name;
  }
}

TEST(Misspelt, AllAreNamed) {
  const std::array<const char*, 5> entries{"TUTTI_TIMOUT=5", "HOME=/", "TUTTI_LOG=warn",
                                           "TUTTI_ISB=avx2", nullptr};
  EXPECT_EQ(about_misspelt_variables(entries.data()),
            "TUTTI_TIMOUT is set, which is no variable of tutti's: is TUTTI_TIMEOUT meant?; "
            "TUTTI_ISB is set, which is no variable of tutti's: is TUTTI_ISA meant?");
}

TEST(Misspelt, AreToldWhoMakesACommunicator) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not said it yet
  const auto join = [] {
    ::setenv("TUTTI_TIMOUT", "5", 1);
    for (int times = 0; times < 2; ++times) Communicator(0, 1, UniqueId::create());
    std::_Exit(0);
  };
  EXPECT_EXIT(join(), ::testing::ExitedWithCode(0),
              "^tutti warn: TUTTI_TIMOUT is set, .* is TUTTI_TIMEOUT meant\\?\n$");
}

}  // namespace
}  // namespace tutti
