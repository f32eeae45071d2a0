// The last checkpoint of a server, whose workers have all gone.
#include "ps/saver.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>

#include "ps/files/manifest.hpp"
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

/** Who asks again later is told of its own. */
TEST(PsSaver, WhatAWorkerHasPublishedIsNotPublishedAgainWhenAnotherHas) {
  const tutti::test::Folder folder;
  StoredJob job({}, {}, 1);
  Saver saver(
      {.folder = folder.path(), .job = 7}, [&] { return job.server(0).state(); }, 0, 1, 2);
  const auto request = [](int worker, RequestKind kind) {
    return Request{worker, 1, {.kind = kind, .round = 0}, {}};
  };
  const auto outcome_of = [&](int worker, RequestKind kind) {
    Answer answer{.outcome = Outcome::not_yet};
    while (answer.outcome == Outcome::not_yet) {
      answer = kind == RequestKind::save ? saver.save(request(worker, kind))
                                         : saver.publish(request(worker, kind));
      saver.go_on(false);
    }
    return answer.outcome;
  };
  for (const int worker : {0, 1}) ASSERT_EQ(outcome_of(worker, RequestKind::save), Outcome::done);
  ASSERT_EQ(saver.publish(request(0, RequestKind::finish_save)).outcome, Outcome::not_yet);
  for (const int worker : {1, 0, 1})
    EXPECT_EQ(outcome_of(worker, RequestKind::finish_save), Outcome::done) << worker;
  EXPECT_EQ(read_manifest(folder.path()).attempt, attempt_of_job(7, "worker1-0"));
}

}  // namespace
}  // namespace tutti::ps::saver_test
