// A watch's part of a wait that lasts: its deadline, and whom to blame when that passes.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/deadline.hpp"
#include "base/finally.hpp"
#include "base/text.hpp"
#include "comm/failures/inquiry.hpp"
#include "comm/failures/watch.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {
namespace {

// What one who left has taken of this rank's messages may not be known here yet.
constexpr std::chrono::milliseconds kLastWords{100};
constexpr std::chrono::milliseconds kBetweenVerdicts{1};
// Hosts that were out of reach before, and a moment more than kernels have.
constexpr std::chrono::milliseconds kToAnswerAfterAll{350};

}  // namespace

/** What it shows of the wait, to who may ask, stands until the wait has ended. */
class Watch::WaitLookout final : public Wire::Lookout {
 public:
  WaitLookout(Watch& watch, Wire::Side side, std::chrono::milliseconds timeout)
      : watch_(watch),
        side_(side),
        timeout_(timeout),
        deadline_(timeout, watch.time()),
        enquiry_(std::in_place, kToEnquire, watch.time()) {}
  WaitLookout(const WaitLookout&) = delete;
  WaitLookout& operator=(const WaitLookout&) = delete;
  ~WaitLookout() override {
    watch_.wait_graph().own_waits().forget();
    watch_.end_wait(side_);
  }

  // Later waits need no new memory.
  static void* operator new(std::size_t bytes) { return take_block(bytes); }
  static void operator delete(void* block) { give_block(block, sizeof(WaitLookout)); }

  void look(std::span<const int> awaited) override {
    watch_.look_around(awaited, side_);
    const RecycledVector<int> leavers = watch_.leavers(awaited, side_);
    if (!leavers.empty()) return hear_out(leavers);
    heard_out_.clear();
    if (enquiry_ && enquiry_->expired()) {
      watch_.enquire(awaited);
      enquiry_.reset();
    }
    const bool is_over = deadline_.expired();
    const auto lead = inquiry_lead(watch_.timeout_);
    if (!inquiry_ && deadline_.expires_within(lead)) {
      passed_ = std::min(passed_, watch_.time().now() + lead);
      inquiry_.emplace(watch_.acquaintance(), watch_.wait_graph(), &watch_, side_, awaited,
                       watch_.timeout_, passed_);
    }
    if (!is_over) return;
    const auto verdict = inquiry_->verdict();
    if (!verdict) return;
    if (!verdict->loss.ranks.empty()) watch_.lose(verdict->loss.ranks, verdict->loss.reason);
    deadline_ = Deadline(timeout_ - verdict->idle, watch_.time());
    inquiry_.reset();
  }

  void restart() override {
    deadline_ = Deadline(timeout_, watch_.time());
    enquiry_.emplace(kToEnquire, watch_.time());
    inquiry_.reset();
    passed_ = Clock::time_point::max();
  }

 private:
  /** Nothing of theirs is under way, though messages of others may move: a moment more, and one
   * last look at the messages. */
  void hear_out(const RecycledVector<int>& leavers) {
    if (leavers != heard_out_) {
      heard_out_ = leavers;
      last_words_ = Deadline(kLastWords, watch_.time());
      looked_again_ = false;
    }
    if (!last_words_->expired() || !std::exchange(looked_again_, true)) return;
    watch_.lose({leavers.begin(), leavers.end()}, "it has destroyed its communicator");
  }

  Watch& watch_;
  Wire::Side side_;
  std::chrono::milliseconds timeout_;
  Deadline deadline_;
  std::optional<Deadline> enquiry_;  // until others are asked whether they have left
  std::optional<Inquiry> inquiry_;
  Clock::time_point passed_ = Clock::time_point::max();  // when the deadline passes first
  RecycledVector<int> heard_out_;                        // those who left
  std::optional<Deadline> last_words_;                   // of these
  bool looked_again_ = false;
};

std::unique_ptr<Wire::Lookout> Watch::look_out(Wire::Side side, std::chrono::milliseconds timeout) {
  return std::make_unique<WaitLookout>(*this, side, timeout);
}

void Watch::progressed() {
  wait_graph().progressed();
  if (wait_graph().own_waits().are_quiet()) poll({});  // who always gets on answers all the same
}

void Watch::look_around(std::span<const int> waiting_for, Wire::Side side) {
  poll(waiting_for);
  if (idle_.during) idle_.during(side);
}

void Watch::end_wait(Wire::Side side) const {
  if (idle_.after) idle_.after(side);
}

void Watch::lose(std::vector<int> ranks, const std::string& reason) {
  announce_lost(ranks, reason);
  poll({});  // throws what all members throw, which may be an earlier loss
  throw PeerLost(std::move(ranks), reason);
}

void Watch::lose_by_message(std::vector<int> ranks, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    last_poll_ = {};  // what has come is heard now, however lately that was looked after
  }
  {
    const Finally end([this] { end_wait(Wire::Side::collective); });
    look_around(ranks, Wire::Side::collective);
  }
  lose(std::move(ranks), reason);
}

void Watch::investigate(std::span<const int> suspects, std::chrono::milliseconds overdue) {
  Inquiry inquiry(acquaintance(), wait_graph(), this, Wire::Side::collective, suspects, timeout_,
                  time().now() - overdue);
  const Finally end([this] { end_wait(Wire::Side::collective); });
  for (;; time().sleep(kBetweenVerdicts), InterruptCheck::poll()) {
    look_around(suspects, Wire::Side::collective);
    if (const auto verdict = inquiry.verdict()) {
      if (!verdict->loss.ranks.empty()) lose(verdict->loss.ranks, verdict->loss.reason);
      return;
    }
  }
}

void Watch::ask_again() {
  const auto members = wait_graph().numbers_of(session_, members_);
  const RecycledVector<ProcessNumber> noted = wait_graph().cut_off_among(members, timeout_);
  if (noted.empty()) return;
  std::vector<int> ranks;
  for (int rank = 0; rank < std::ssize(members); ++rank) {
    const ProcessNumber process = members[static_cast<std::size_t>(rank)];
    if (std::find(noted.begin(), noted.end(), process) != noted.end()) ranks.push_back(rank);
  }
  const Finally end([this] {
    wait_graph().own_waits().forget();
    end_wait(Wire::Side::collective);
  });
  ping_hosts();
  for (Deadline deadline(kToAnswerAfterAll, time()); !deadline.expired();
       time().sleep(kBetweenVerdicts), InterruptCheck::poll()) {
    look_around(ranks, Wire::Side::collective);
  }
  const Loss loss = unreachable(ranks);  // as the kernel knows it now
  if (loss.ranks.empty()) return wait_graph().forget_cut_off(noted);
  lose(loss.ranks, loss.reason);
}

std::function<void()> Watch::investigation(std::span<const int> suspects) {
  return [this, investigation = std::make_shared<Investigation>(acquaintance(), wait_graph(), this,
                                                                suspects, timeout_)] {
    if (const auto loss = investigation->look()) lose(loss->ranks, loss->reason);
  };
}

}  // namespace tutti
