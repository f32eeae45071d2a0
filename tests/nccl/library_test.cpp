// How libnccl is found, and what is said if it cannot be used.
#include "comm/nccl/library.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "nccl/fake_nccl.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

/** The message of the BackendUnavailable that opening `file` throws. */
std::string refusal(const char* file) {
  ::setenv("TUTTI_NCCL_LIB", file, 1);
  try {
    Library::open();
  } catch (const BackendUnavailable& error) {
    return error.what();
  }
  return "it was opened";
}

TEST(NcclLibrary, IsTheOneThatTheEnvironmentNames) {
  ::setenv("TUTTI_NCCL_LIB", FAKE_NCCL, 1);
  fake_nccl()->version = 22809;
  const auto library = Library::open();
  EXPECT_EQ(library->path, FAKE_NCCL);
  EXPECT_EQ(library->version, 22809);
  ncclUniqueId id;
  EXPECT_EQ(library->GetUniqueId(&id), ncclSuccess);
  EXPECT_STREQ(id.internal, "the id");
}

TEST(NcclLibrary, ThatIsNotThereIsNamed) {
  EXPECT_NE(refusal("/nowhere/libnccl.so.2").find("/nowhere/libnccl.so.2"), std::string::npos);
}

TEST(NcclLibrary, ThatLacksAFunctionIsNamedWithIt) {
  EXPECT_EQ(refusal(BARE_NCCL), std::string(BARE_NCCL) + " has no function ncclGetUniqueId");
}

TEST(NcclLibrary, ThatIsTooOldIsNamedWithItsVersion) {
  fake_nccl()->version = 22105;
  EXPECT_EQ(refusal(FAKE_NCCL),
            std::string(FAKE_NCCL) + " is NCCL 2.21.5, but must be at least 2.22.3");
}

TEST(NcclLibrary, VersionsReadAsNcclWritesThem) {
  EXPECT_EQ(version_text(22809), "2.28.9");
  EXPECT_EQ(version_text(21903), "2.19.3");
}

}  // namespace
}  // namespace tutti::nccl
