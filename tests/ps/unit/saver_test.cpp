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

/** One worker's may be due while another asks for one. */
TEST(PsSaver, WhatAnotherWorkerAsksForMeanwhileComesAfterwards) {
  const tutti::test::Folder folder;
  StoredJob job({}, {}, 1);
  Saver saver(
      {.folder = folder.path(), .job = 7}, [&] { return job.server(0).state(); }, 0, 1, 2);
  const auto of_worker = [](int worker) {
    return Request{worker, 1, {.kind = RequestKind::save, .round = 0}, {}};
  };
  ASSERT_EQ(saver.save(of_worker(1)).outcome, Outcome::not_yet);
  for (const int worker : {0, 1}) {
    Answer answer{.outcome = Outcome::not_yet};
    while (answer.outcome == Outcome::not_yet) {
      answer = saver.save(of_worker(worker));
      saver.go_on(false);
    }
    EXPECT_EQ(answer.outcome, Outcome::done) << worker;
  }
}

}  // namespace
}  // namespace tutti::ps::saver_test
