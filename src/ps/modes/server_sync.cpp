// A server in sync mode: keeps the pushes of a round until all workers have ended it.
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ps/link/link.hpp"
#include "ps/modes/server_mode.hpp"
#include "ps/table/merge.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

/** A push, which lies where its worker has put it until it is answered, and here from then on. */
class KeptPush {
 public:
  explicit KeptPush(const Request& request) : request_(request) {}

  const RequestHeader& header() const { return request_.header; }
  std::span<const std::byte> payload() const {
    return unanswered_ ? request_.payload : std::span<const std::byte>(copy_);
  }
  /** Throws std::bad_alloc; may be called again. */
  void copy() {
    if (unanswered_ && copy_.empty())
      copy_.assign(request_.payload.begin(), request_.payload.end());
  }
  void answer(Links& links) {
    if (std::exchange(unanswered_, false)) give_answer(links, request_, {});
  }
  /** The same, of one that has no copy. Takes no memory. */
  void refuse(Links& links) {
    links.answer(request_, {.outcome = Outcome::no_memory}, {});
    unanswered_ = false;
  }

 private:
  Request request_;
  bool unanswered_ = true;
  std::vector<std::byte> copy_;
};

class SyncServer final : public ServerMode {
 public:
  SyncServer(const Sync& mode, Stores& stores, const Members& members, Links& links)
      : ServerMode(stores, members, links),
        mode_(mode),
        kept_(static_cast<std::size_t>(members.at_start())) {
    for (const Table& table : stores.tables()) mergers_.emplace_back(table.identity().spec.dim);
  }

  void push(const Request& request) override {
    if (request.header.kind == RequestKind::push_rows) {
      stores_.rows(request.header, request.payload);
    } else if (request.header.kind == RequestKind::push_dense) {
      stores_.gradients(request.header, request.payload);
    } else {
      throw InvalidArgument("only gradients are pushed in sync mode");
    }
    std::vector<KeptPush>& kept = kept_[static_cast<std::size_t>(request.worker)];
    kept.emplace_back(request);
    if (kept.size() % kMostKept == 0) answer_kept(request.worker);
  }

  /** What there is no memory for is refused, and left out of the round. */
  void answer_kept(int worker) override {
    std::erase_if(kept_[static_cast<std::size_t>(worker)], [this](KeptPush& push) {
      try {
        push.copy();
        push.answer(links_);
        return false;
      } catch (const std::bad_alloc&) {
        push.refuse(links_);
        return true;
      }
    });
  }

  /** Rounds are what counts. */
  void count_steps(std::int64_t) override {}

  std::optional<Answer> end_round(const Request& request, bool saving) override {
    if (lost_ && applied_ < members_.rounds(request.worker)) {
      discard(request.worker);
      return lost_;
    }
    if (!saving && members_.slowest() > applied_) apply();
    if (applied_ < members_.rounds(request.worker)) return std::nullopt;
    return failure_.value_or(Answer{});
  }

  /** Who is lost once it has ended a round has its part in that. Other servers may have applied it:
   * so they all stand at one round, and can write a last checkpoint. */
  void remove(int worker, const std::string* lost_because) override {
    const bool counts = lost_because != nullptr && !lost_;
    if (counts && members_.rounds(worker) > applied_ && take_over(worker)) {
      leavers_.push_back({worker, *lost_because});
    } else {
      forget(worker);
      // The round cannot end: because of this one, whoever is lost besides.
      if (counts && !mode_.continue_after_loss) {
        end_with(worker, *lost_because);
        let_leave();
      }
    }
    if (members_.living() == 0 && !leavers_.empty()) apply();
  }

  bool has_failed() const override { return lost_.has_value(); }
  bool can_go_on() const override {
    return !lost_ && (leavers_.empty() || mode_.continue_after_loss);
  }
  std::int64_t rounds_applied() const override { return applied_; }

 private:
  /** Far fewer than a link may have unanswered. */
  static constexpr std::size_t kMostKept = kMostUnanswered / 4;

  /** What one worker with all batches, one after the other, would do; and a part of that for each
   * worker. */
  void apply() {
    const float scale = 1.0F / static_cast<float>(members_.living() + std::ssize(leavers_));
    failure_.reset();
    for (int table = 0; table < std::ssize(stores_.tables()); ++table)
      or_fail([&] { apply_rows(table, scale); });
    or_fail([&] { apply_dense(scale); });
    for (int worker = 0; worker < members_.at_start(); ++worker) discard(worker);
    ++applied_;
    stores_.step(1);
    let_leave();
  }

  /** What a worker has pushed lies in its memory: whether there is room for it here. */
  bool take_over(int worker) {
    try {
      for (KeptPush& push : kept_[static_cast<std::size_t>(worker)]) push.copy();
    } catch (const std::bad_alloc&) {
      return false;
    }
    answer_kept(worker);
    return true;
  }

  void end_with(int worker, const std::string& reason) {
    if (!lost_) lost_ = Answer::with_text(Outcome::lost_worker, reason, worker);
  }

  void forget(int worker) { kept_[static_cast<std::size_t>(worker)].clear(); }

  void let_leave() {
    for (const LostWorker& leaver : leavers_) {
      forget(leaver.worker);
      if (!mode_.continue_after_loss) end_with(leaver.worker, leaver.reason);
    }
    leavers_.clear();
  }

  void apply_rows(int table, float scale) {
    Merger& merger = mergers_[static_cast<std::size_t>(table)];
    merger.clear();
    for (const std::vector<KeptPush>& of_worker : kept_) {
      for (const KeptPush& push : of_worker) {
        if (push.header().kind != RequestKind::push_rows || push.header().table != table) continue;
        const RowsOfRequest rows = stores_.rows(push.header(), push.payload());
        merger.add(rows.ids, rows.rows, rows.shows, rows.clicks);
      }
    }
    if (merger.ids().empty()) return;
    stores_.update(table, {merger.ids(), merger.rows(), scale, merger.shows(), merger.clicks()});
  }

  /** Who has not pushed a block counts with a gradient of zero, if another has. */
  void apply_dense(float scale) {
    std::vector<std::vector<const float*>> pushed(stores_.dense().blocks().size());
    for (const std::vector<KeptPush>& of_worker : kept_) {
      for (const KeptPush& push : of_worker) {
        if (push.header().kind != RequestKind::push_dense) continue;
        for (const auto& [block, elements] : stores_.gradients(push.header(), push.payload()))
          pushed[static_cast<std::size_t>(block)].push_back(elements.data());
      }
    }
    for (std::size_t i = 0; i < pushed.size(); ++i) {
      if (!pushed[i].empty())
        stores_.dense().update(static_cast<std::int64_t>(i), pushed[i], scale);
    }
  }

  /** What has no memory, or what its worker has spoilt since it pushed it, is left out of the
   * round, which is applied once: not again as a whole. */
  template <class Action>
  void or_fail(const Action& action) {
    try {
      action();
    } catch (const SystemError& error) {
      failure_ = Answer::with_text(Outcome::no_memory, error.what());
    } catch (const Error& error) {
      failure_ = Answer::with_text(Outcome::refused, error.what());
    } catch (const std::bad_alloc&) {
      failure_ = Answer::with_text(Outcome::no_memory, "out of memory");
    }
  }

  void discard(int worker) {
    std::vector<KeptPush>& kept = kept_[static_cast<std::size_t>(worker)];
    for (KeptPush& push : kept) push.answer(links_);
    kept.clear();
  }

  Sync mode_;
  std::vector<std::vector<KeptPush>> kept_;  // of each worker
  std::vector<LostWorker> leavers_;          // lost, but for the round that they have ended
  std::vector<Merger> mergers_;              // of each table
  std::int64_t applied_ = 0;
  std::optional<Answer> failure_;  // of the round applied last
  std::optional<Answer> lost_;     // no round can be applied any more
};

}  // namespace

std::unique_ptr<ServerMode> make_server_mode(const Sync& mode, Stores& stores,
                                             const Members& members, Links& links) {
  return std::make_unique<SyncServer>(mode, stores, members, links);
}

}  // namespace tutti::ps
