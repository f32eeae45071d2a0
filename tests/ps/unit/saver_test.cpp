// The last checkpoint of a server, whose workers have all gone.
#include "ps/saver.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>

#include "stored_job.hpp"
#include "support/folder.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps::saver_test {
namespace {

class Interrupted : public std::exception {};

TEST(PsSaver, AWaitForTheLastPartsOfOthersHearsInterrupts) {
  const tutti::test::Folder folder;
  StoredJob job({}, {}, 2);
  Saver saver(
      {.folder = folder.path(), .at_end = true}, [&] { return job.server(0).state(); }, 0, 2, 1);
  const InterruptCheck check([] { throw Interrupted(); });
  EXPECT_THROW(saver.save_at_end(std::chrono::seconds(20)), Interrupted);
}

}  // namespace
}  // namespace tutti::ps::saver_test
