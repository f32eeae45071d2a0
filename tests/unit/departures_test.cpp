// Who is told that a rank leaves, and when it is known that all have left.
#include "comm/failures/departures.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>
#include <vector>

namespace tutti {
namespace {

Layout layout_of(int hosts, int ranks) {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < hosts * ranks; ++rank) host_of_rank.push_back(rank / ranks);
  return Layout(host_of_rank);
}

/** Ranks that leave, and messages that are carried when the test says so. */
class Leavers {
 public:
  /** `ranks` on each host. */
  explicit Leavers(int hosts, int ranks = 2) {
    const int size = hosts * ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back(rank, size).set_hosts(layout_of(hosts, ranks));
      counts_.emplace_back(static_cast<std::size_t>(size));
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Departures& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  MessageCounts& counts(int rank) { return counts_[static_cast<std::size_t>(rank)]; }

  void leave(int from) {
    for (const int to : rank(from).leave(counts(from))) {
      under_way_.push_back({from, to, Departure{counts(from).sent_to(to)}});
    }
    left_.push_back(from);
  }
  /** Asks, without carrying it. */
  void ask(int from, int to) {
    if (rank(from).ask(to)) enquiries_.push_back({from, to, {}});
  }
  void carry_enquiries() {
    for (; !enquiries_.empty(); enquiries_.pop_front()) {
      const Message& asked = enquiries_.front();
      if (!rank(asked.to).hear_enquiry(asked.from)) continue;
      const Departure told{counts(asked.to).sent_to(asked.from)};
      under_way_.push_back({asked.to, asked.from, told});
    }
  }
  /** All but departures to `late`; what the ranks that have left say to it, too. */
  void carry(int late = -1) {
    for (bool moved = true; moved;) {
      moved = false;
      std::deque<Message> kept;
      for (; !under_way_.empty(); under_way_.pop_front()) {
        const Message& message = under_way_.front();
        if (message.to == late && std::holds_alternative<Departure>(message.what)) {
          kept.push_back(message);
          continue;
        }
        moved = true;
        std::visit([&](const auto& what) { hear(message, what); }, message.what);
      }
      under_way_ = std::move(kept);
      for (const int one : left_) {
        while (const auto word = rank(one).next_word()) {
          moved = true;
          words_ += static_cast<int>(word->receivers.size());
          for (const int to : word->receivers) under_way_.push_back({one, to, word->headcount});
        }
      }
    }
  }
  bool all_know() {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Departures& one) { return one.all_have_left(); });
  }
  bool nobody_knows() {
    return std::none_of(ranks_.begin(), ranks_.end(),
                        [](const Departures& one) { return one.all_have_left(); });
  }
  int words() const { return words_; }

 private:
  struct Message {
    int from;
    int to;
    std::variant<Departure, Headcount> what;
  };
  template <class What>
  void hear(const Message& message, const What& what) {
    rank(message.to).hear(message.from, what);
  }

  std::deque<Departures> ranks_;
  std::deque<MessageCounts> counts_;
  std::vector<int> left_;
  std::deque<Message> under_way_;
  std::deque<Message> enquiries_;  // under way
  int words_ = 0;
};

TEST(Departures, FewHostsTellEverybody) {
  Leavers leavers(17);
  EXPECT_EQ(leavers.rank(5).leave(leavers.counts(5)).size(), 33U);
}

TEST(Departures, ManyHostsTellThoseWhoMayWait) {
  Leavers leavers(64);
  leavers.counts(7).count_sent(100, 1);
  const std::vector<int> told = leavers.rank(7).leave(leavers.counts(7));  // of host 3
  // The other rank of its host, leaders of hosts a power of two away, and whom it has sent to.
  const std::vector<int> expected{2, 4, 6, 8, 10, 14, 22, 38, 70, 100, 102, 118, 126};
  EXPECT_EQ(told, expected);
}

TEST(Departures, ManyRanksOfFewHostsTellThoseWhoMayWait) {
  Leavers few(2, 32);
  EXPECT_EQ(few.rank(5).leave(few.counts(5)).size(), 63U);
  Leavers leavers(3, 64);
  std::vector<int> expected;  // the other ranks of its host, and the leaders of all
  for (int rank = 64; rank < 128; ++rank) {
    if (rank != 70) expected.push_back(rank);
  }
  expected.insert(expected.begin(), 0);
  expected.push_back(128);
  EXPECT_EQ(leavers.rank(70).leave(leavers.counts(70)), expected);
}

TEST(Departures, WhatWasAbandonedIsNotWaitedFor) {
  MessageCounts sender(2);
  MessageCounts receiver(2);
  for (int i = 0; i < 3; ++i) sender.count_sent(1, 0);
  sender.discount_sent(1, 0);
  receiver.count_received(0, 0);
  EXPECT_FALSE(receiver.has_all(0, sender.sent_to(1), 0));
  receiver.count_received(0, 0);
  EXPECT_TRUE(receiver.has_all(0, sender.sent_to(1), 0));
  receiver.count_received(0, 0);  // it has come all the same
  EXPECT_TRUE(receiver.has_all(0, sender.sent_to(1), 0));
}

TEST(Departures, WhoAsksIsToldOnce) {
  Leavers leavers(64);
  Departures& leaver = leavers.rank(7);
  EXPECT_TRUE(leavers.rank(99).ask(7));
  EXPECT_FALSE(leavers.rank(99).ask(7));  // twice
  EXPECT_FALSE(leaver.hear_enquiry(99));  // not yet
  const std::vector<int> told = leaver.leave(leavers.counts(7));
  EXPECT_EQ(std::count(told.begin(), told.end(), 99), 1);
  EXPECT_FALSE(leaver.hear_enquiry(99));
  EXPECT_TRUE(leaver.hear_enquiry(98));
  EXPECT_FALSE(leaver.hear_enquiry(98));
  leavers.rank(98).hear(7, Departure{});
  EXPECT_FALSE(leavers.rank(98).ask(7));
}

TEST(Departures, AllKnowOnceTheLastHasLeft) {
  for (const int hosts : {2, 17, 18, 33, 64, 100}) {
    Leavers leavers(hosts);
    for (int rank = leavers.size() - 1; rank > 0; --rank) leavers.leave(rank);
    leavers.carry();
    EXPECT_FALSE(leavers.rank(1).all_have_left()) << hosts;
    leavers.leave(0);
    leavers.carry();
    EXPECT_TRUE(leavers.all_know()) << hosts;
  }
}

TEST(Departures, AllOfManyRanksOfFewHostsKnowOnceTheLastHasLeft) {
  for (const int hosts : {2, 3, 17}) {
    Leavers leavers(hosts, 40);
    for (int rank = leavers.size() - 1; rank > 0; --rank) leavers.leave(rank);
    leavers.carry();
    EXPECT_TRUE(leavers.nobody_knows()) << hosts;
    leavers.leave(0);
    leavers.carry();
    EXPECT_TRUE(leavers.all_know()) << hosts;
  }
}

TEST(Departures, TheTreeTakesFewMessages) {
  Leavers leavers(64);
  for (int rank = 0; rank < leavers.size(); ++rank) leavers.leave(rank);
  leavers.carry();
  EXPECT_TRUE(leavers.all_know());
  EXPECT_LE(leavers.words(), 3 * leavers.size());
}

TEST(Departures, WhatIsUnderWayIsWaitedFor) {
  Leavers leavers(64);
  leavers.counts(7).count_sent(101, 1);  // of which rank 101 knows nothing
  for (int rank = 0; rank < leavers.size(); ++rank) leavers.leave(rank);
  leavers.carry(101);
  EXPECT_TRUE(leavers.nobody_knows());
  EXPECT_FALSE(leavers.rank(101).has_left(7));
  leavers.carry();
  EXPECT_TRUE(leavers.all_know());
  ASSERT_NE(leavers.rank(101).sent_by(7), nullptr);
  EXPECT_EQ((*leavers.rank(101).sent_by(7))[1], 1U);
}

/** Ranks 99 and 7 tell each other nothing of themselves, 7 and 8 do. */
TEST(Departures, EnquiriesAndTheirAnswersAreWaitedFor) {
  for (const int asker : {99, 8}) {
    for (const bool leaves_first : {false, true}) {
      Leavers leavers(64);
      if (leaves_first) leavers.leave(7);
      leavers.ask(asker, 7);
      for (int rank = 0; rank < leavers.size(); ++rank) {
        if (rank != 7 || !leaves_first) leavers.leave(rank);
      }
      leavers.carry();
      EXPECT_TRUE(leavers.nobody_knows());  // the question is under way
      leavers.carry_enquiries();
      leavers.carry(asker);
      EXPECT_EQ(leavers.nobody_knows(), asker == 99);  // whose answer is
      leavers.carry();
      EXPECT_TRUE(leavers.all_know());
      EXPECT_TRUE(leavers.rank(asker).has_left(7));
    }
  }
}

}  // namespace
}  // namespace tutti
