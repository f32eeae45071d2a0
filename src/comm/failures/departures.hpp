// Who has left a communicator, and whether all have.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "comm/failures/control_message.hpp"
#include "comm/layout.hpp"
#include "comm/message_counts.hpp"

namespace tutti {

/**
 * Whoever leaves tells those who may wait for it. Up to kFew ranks on hosts that all have
 * connections to each other, that is everybody. With more of either it is the ranks of its host,
 * the leaders of the hosts that have a connection to it, whomever it has sent a message, and who
 * has asked: the others learn of it from one of those, when that loses it, or ask when they have
 * waited for a while. That all have left, and no message of theirs is under way, goes through a
 * tree then: up go the numbers of messages told and heard, of those who have left, and down the
 * word, once all have and the numbers are equal. An enquiry counts, and no departure that answers
 * one, before or after it was asked for: who has asked is not counted before it has heard. So no
 * number that was equal changes later. Ranks are the channel's. Not thread-safe.
 */
class Departures {
 public:
  static constexpr int kFew = 64;

  Departures(int rank, int size) : rank_(rank), size_(size) {}

  /** Before the first message: which ranks share a host. */
  void set_hosts(const Layout& layout);

  /** This rank leaves: whom it is to tell. */
  std::vector<int> leave(const MessageCounts& counts);
  void hear(int source, const Departure& departure) { heard_[source] = departure.sent; }
  void hear(int source, const Headcount& headcount);
  /** An Enquiry of `source`: whether it is to be told now. */
  bool hear_enquiry(int source);
  /** Whether an Enquiry is to go to `rank`, which may not tell this one unless it is asked: true
   * once, as it remembers. Before leave(). */
  bool ask(int rank);

  /** What is to go through the tree. */
  struct Word {
    Headcount headcount;
    std::vector<int> receivers;
  };
  /** After leave(), until it has nothing more to say. */
  std::optional<Word> next_word();
  /** After leave(): whether all have left, and what they told this rank has come. */
  bool all_have_left() const;

  bool has_left(int rank) const { return heard_.contains(rank); }
  /** What `rank` has sent to this one until it left; nothing if it has not, or has not told. */
  const MessageCounts::Sent* sent_by(int rank) const;

 private:
  bool tells_in_any_case(int rank) const;
  Headcount own_headcount() const;

  int rank_;
  int size_;
  std::map<int, MessageCounts::Sent> heard_;
  std::set<int> told_;
  bool has_left_ = false;

  // Where not everybody is told.
  std::optional<std::vector<int>> next_to_;  // who is told in any case
  std::set<int> curious_;                    // who has asked
  std::set<int> asked_;                      // whom this rank has asked
  int parent_ = -1;
  std::map<int, std::optional<Headcount>> children_;  // with what they have said last
  std::optional<Headcount> said_;                     // to the parent
  bool all_left_ = false;
  bool passed_on_ = false;
};

}  // namespace tutti
