// What changes a table: pushes, files, and evictions.
#include "ps/table/table.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "base/finally.hpp"
#include "base/huge_pages.hpp"
#include "base/log.hpp"
#include "ps/table/arena.hpp"
#include "ps/table/entry.hpp"
#include "ps/table/eviction.hpp"
#include "ps/table/index.hpp"
#include "ps/table/initial.hpp"
#include "ps/table/room.hpp"
#include "ps/table/row_reader.hpp"
#include "ps/table/rows.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/shards.hpp"

namespace tutti::ps {
namespace {

static_assert(Table::kShards == kIndexShards);

constexpr std::size_t kAhead = 40;  // rows that are asked for before they are changed

/** The last_step of rows that a push is about to change, while others go for it. */
constexpr std::int64_t kPushedNow = std::numeric_limits<std::int64_t>::max();

}  // namespace

class Table::Impl {
 public:
  Impl(const TableIdentity& identity, const std::string& segment)
      : identity_(checked_identity(identity)),
        keeps_history_(EvictionPolicy::keeps_history(identity_.spec)),
        layout_(table_layout(identity_.spec, Arena::most_bytes(segment))),
        arena_(segment, layout_.bytes),
        index_(begin_memory(arena_, layout_), identity_.spec.split, identity_.servers),
        shards_(arena_, index_),
        rows_(arena_, layout_, extras_of(identity_.spec)),
        reader_(identity_, arena_.base()),
        kernel_(identity_.spec.rule),
        admission_(identity_),
        policy_(identity_.spec, most_rows(identity_)) {}

  const TableIdentity& identity() const { return identity_; }
  const RowReader& reader() const { return reader_; }
  Admission& admission() { return admission_; }
  void unlink() { arena_.unlink(); }

  /** change(weights, state, value) does to each row what a push does. */
  template <class Change>
  void push(const RowUpdates& updates, bool admits_all, const Change& change) {
    locate(updates.ids);
    if (!absent_.empty()) create(updates, admits_all);
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (i + kAhead < targets_.size() && targets_[i + kAhead].slot != nullptr) {
        rows_.prefetch(targets_[i + kAhead].row);
      }
      const auto& [slot, row] = targets_[i];
      if (slot == nullptr) continue;
      const RowChange changing(*slot, identity_.spec.consistent_rows);
      change(rows_.weights(row), rows_.state(row),
             updates.values + static_cast<std::int64_t>(i) * identity_.spec.dim);
      if (keeps_history_) note(rows_.history(row), updates, i);
    }
  }

  void update(const RowUpdates& updates) {
    push(updates, admission_.admits_all(), [&](float* weights, float* state, const float* value) {
      kernel_.apply(weights, state, value, identity_.spec.dim, updates.scale);
    });
  }

  void add(const RowUpdates& updates) {
    push(updates, true, [&](float* weights, float* /*state*/, const float* value) {
      add_scaled(weights, value, identity_.spec.dim, updates.scale);
    });
  }

  void expect(std::int64_t rows, std::int64_t counts) {
    shards_.expect(rows);
    if (auto* const counted = admission_.counts()) counted->expect(counts);
  }

  void restore(std::span<const StoredRow> stored) {
    std::vector<std::int64_t> ids(stored.size());
    std::transform(stored.begin(), stored.end(), ids.begin(),
                   [](const StoredRow& row) { return row.id; });
    std::vector<std::size_t> places(ids.size());
    std::iota(places.begin(), places.end(), 0);
    shards_.make_room(counts_of(ids, places));
    locate(ids);
    rows_.make_room(std::ssize(absent_));
    if (auto* const counted = admission_.counts()) {
      counted->find(ids, steps_);
      for (std::size_t i = 0; i < ids.size(); ++i) counted->sum(i) = 0;
      counted->keep();
    }
    for (const std::size_t i : absent_) {
      const std::uint32_t row = rows_.acquire();
      targets_[i] = {&shards_.insert(ids[i], row), row};
      ++created_;
    }
    for (std::size_t i = 0; i < stored.size(); ++i) {
      const auto& [slot, row] = targets_[i];
      if (slot == nullptr) continue;  // padding
      const RowChange changing(*slot, identity_.spec.consistent_rows);
      copy_row(stored[i].weights, rows_.weights(row), layout_.dim);
      copy_row(stored[i].state, rows_.state(row), rows_.state_floats());
      if (!keeps_history_) continue;
      rows_.history(row) = {stored[i].last_step, stored[i].shows, stored[i].clicks};
    }
  }

  std::vector<StoredRow> rows_between(std::uint64_t first, std::uint64_t last) const {
    std::vector<StoredRow> rows;
    const auto slots = shards_.sorted(first, last);
    rows.reserve(slots.size());
    for (const auto& [within, slot] : slots) {
      const std::uint32_t row = row_of(*slot);
      const RowHistory history = keeps_history_ ? rows_.history(row) : RowHistory{};
      rows.push_back({.id = slot->id.load(std::memory_order_relaxed),
                      .weights = rows_.weights(row),
                      .state = rows_.state(row),
                      .last_step = history.last_step,
                      .shows = history.shows,
                      .clicks = history.clicks});
    }
    return rows;
  }

  void step() {
    ++steps_;
    remove_if(policy_.ages_due(steps_),
              [&](const RowHistory& row) { return policy_.too_old(row, steps_); });
    if (auto* const counted = admission_.counts()) {
      counted->forget_old(within(policy_.ages_due(steps_)), steps_);
    }
    remove_if(policy_.scores_due(steps_), [&](RowHistory& row) { return policy_.fade(row); });
    if (policy_.limits_rows()) evict_surplus({});
  }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  std::int64_t rows() const { return rows_.count(); }
  TableStats stats() const {
    return {.name = identity_.spec.name,
            .rows = rows(),
            .bytes = arena_.taken() + rows_.taken() + admission_.bytes(),
            .created = created_,
            .refused = refused_,
            .evicted = evicted_};
  }

 private:
  /** The row of an id; no slot: none. */
  struct Target {
    Slot* slot = nullptr;
    std::uint32_t row = 0;
  };

  /** While it lives, readers who want whole rows do not take this one. */
  class RowChange {
   public:
    RowChange(Slot& slot, bool is_told) : slot_(slot), is_told_(is_told) {
      if (!is_told_) return;
      slot_.word.store(next_version(), std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_release);
    }
    RowChange(const RowChange&) = delete;
    RowChange& operator=(const RowChange&) = delete;
    ~RowChange() {
      if (is_told_) slot_.word.store(next_version(), std::memory_order_release);
    }

   private:
    std::uint64_t next_version() const {
      return slot_.word.load(std::memory_order_relaxed) + kVersion;
    }
    Slot& slot_;
    bool is_told_;
  };

  static std::uint32_t row_of(const Slot& slot) {
    return ps::row_of(slot.word.load(std::memory_order_relaxed)) - 1;
  }

  /** Finds the targets of ids, and which of them are absent. */
  void locate(std::span<const std::int64_t> ids) {
    absent_.clear();
    locate(ids, [&](std::size_t i) {
      if (identity_.spec.padding_idx != ids[i]) absent_.push_back(i);
    });
  }
  template <class Absent>
  void locate(std::span<const std::int64_t> ids, const Absent& absent) {
    targets_.assign(ids.size(), {});
    const auto nothing = [](std::uint64_t /*word*/) {};
    search_index(index_, ids, nothing, [&](std::size_t i, const IndexResult& result) {
      const auto& [slot, word] = result.found;
      if (slot != nullptr) {
        targets_[i] = {slot, ps::row_of(word) - 1};
      } else {
        absent(i);
      }
    });
  }

  /** Rows for those that are absent, as far as they are admitted. */
  void create(const RowUpdates& updates, bool admits_all) {
    const auto& admitted = admits_all ? absent_ : admission_.choose(updates, absent_, steps_);
    const Shards::Counts more = counts_of(updates.ids, admitted);
    if (policy_.limits_rows()) make_way(more);
    rows_.make_room(std::ssize(admitted));
    // Slots have other places then, but the same ids are absent: `admitted` may be absent_ itself.
    if (shards_.make_room(more)) locate(updates.ids, [](std::size_t /*i*/) {});
    // From here on nothing fails.
    if (!admits_all) admission_.count();
    refused_ += std::ssize(absent_) - std::ssize(admitted);
    if (created_ == 0 && !admitted.empty()) tell_of_pages();
    for (const std::size_t i : admitted) targets_[i] = create(updates.ids[i]);
  }

  Shards::Counts counts_of(std::span<const std::int64_t> ids,
                           const std::vector<std::size_t>& places) const {
    Shards::Counts counts{};
    for (const std::size_t i : places) {
      ++counts[static_cast<std::size_t>(shard_of(index_.within(ids[i])))];
    }
    return counts;
  }

  /** Before rows are made others go, so that there are never too many: none that is pushed now. */
  void make_way(const Shards::Counts& more) {
    last_steps_.resize(targets_.size());
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto& [slot, row] = targets_[i];
      if (slot != nullptr) last_steps_[i] = std::exchange(rows_.history(row).last_step, kPushedNow);
    }
    const Finally unmark([&] {
      for (std::size_t i = 0; i < targets_.size(); ++i) {
        const auto& [slot, row] = targets_[i];
        if (slot != nullptr) rows_.history(row).last_step = last_steps_[i];
      }
    });
    evict_surplus(more);
  }

  /** So that there is place for so many more in each shard. */
  void evict_surplus(const Shards::Counts& more) {
    if (!policy_.by_shards()) {
      const std::int64_t all = std::accumulate(more.begin(), more.end(), rows_.count());
      remove_least_recent(0, kShards - 1, policy_.surplus(all));
      candidates_ = std::vector<Candidate>();  // of all rows: memory that max_bytes does not count
      return;
    }
    for (int shard = 0; shard < kShards; ++shard) {
      const std::int64_t all = shards_.count(shard) + more[static_cast<std::size_t>(shard)];
      remove_least_recent(shard, shard, policy_.surplus_of(shard, all, steps_));
    }
  }

  void tell_of_pages() const {
    const bool are_huge = arena_.has_huge_pages().value_or(false) && rows_.has_huge_pages();
    log(LogLevel::info,
        "table '" + identity_.spec.name + "': its rows lie in " +
            (are_huge ? "huge pages" : "small pages: the system gives no huge ones"));
  }

  Target create(std::int64_t id) {
    const std::uint32_t row = rows_.acquire();
    fill_initial(identity_.spec.initial, identity_.seed, id, identity_.spec.dim,
                 rows_.weights(row));
    kernel_.start(rows_.state(row), identity_.spec.dim);
    if (keeps_history_) rows_.history(row) = {.last_step = steps_};
    ++created_;
    return {&shards_.insert(id, row), row};
  }

  void note(RowHistory& history, const RowUpdates& updates, std::size_t i) const {
    history.last_step = steps_;
    if (updates.shows != nullptr) history.shows += updates.shows[i];
    if (updates.clicks != nullptr) history.clicks += updates.clicks[i];
  }

  /** Of those whose ids have these hashes. */
  template <class Condition>
  void remove_if(const Interval& hashes, const Condition& condition) {
    shards_.for_each_between(within(hashes), [&](std::uint64_t, Slot& slot) {
      if (condition(rows_.history(row_of(slot)))) remove(slot);
    });
  }

  Interval within(const Interval& hashes) const {
    return within_of(hashes, identity_.spec.split, identity_.server, identity_.servers);
  }

  /** Histories lie all over: those that follow are asked for as one is read. */
  void remove_least_recent(int first_shard, int last_shard, std::int64_t surplus) {
    if (surplus == 0) return;
    candidates_.clear();
    for (int shard = first_shard; shard <= last_shard; ++shard) {
      shards_.for_each(shard, [&](std::uint64_t within, Slot& slot) {
        candidates_.push_back({0, within, row_of(slot), &slot});
      });
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (i + kAhead < candidates_.size())
        __builtin_prefetch(&rows_.history(candidates_[i + kAhead].row));
      candidates_[i].last_step = rows_.history(candidates_[i].row).last_step;
    }
    std::erase_if(candidates_, [](const Candidate& row) { return row.last_step == kPushedNow; });
    choose_least_recent(candidates_, surplus);
    for (const Candidate& row : candidates_) remove(*row.slot);
  }

  void remove(Slot& slot) {
    rows_.release(row_of(slot));
    shards_.remove(slot);
    ++evicted_;
  }

  TableIdentity identity_;
  bool keeps_history_;
  TableLayout layout_;
  Arena arena_;
  Index index_;
  Shards shards_;
  Rows rows_;
  RowReader reader_;
  RuleKernel kernel_;
  Admission admission_;
  EvictionPolicy policy_;
  std::int64_t steps_ = 0;
  std::int64_t created_ = 0;
  std::int64_t refused_ = 0;
  std::int64_t evicted_ = 0;
  std::vector<Target> targets_;           // of the ids of a push
  std::vector<std::size_t> absent_;       // places of ids in a push that have no row
  std::vector<std::int64_t> last_steps_;  // of targets, while rows go for others
  std::vector<Candidate> candidates_;     // for them; kept for the rows of one shard
};

Table::Table(const TableIdentity& identity, const std::string& segment)
    : impl_(std::make_unique<Impl>(identity, segment)) {}
Table::Table(Table&&) noexcept = default;
Table& Table::operator=(Table&&) noexcept = default;
Table::~Table() = default;

const TableIdentity& Table::identity() const { return impl_->identity(); }
void Table::unlink() { impl_->unlink(); }
void Table::update(const RowUpdates& updates) { impl_->update(updates); }
void Table::add(const RowUpdates& updates) { impl_->add(updates); }

std::int64_t Table::lookup(std::span<const std::int64_t> ids,
                           std::span<const std::int64_t> positions, float* out) const {
  return impl_->reader().lookup(ids, positions, out);
}

void Table::step() { impl_->step(); }
std::int64_t Table::steps() const { return impl_->steps(); }
void Table::set_steps(std::int64_t steps) { impl_->set_steps(steps); }
TableStats Table::stats() const { return impl_->stats(); }
std::int64_t Table::rows() const { return impl_->rows(); }

std::vector<StoredRow> Table::rows_between(std::uint64_t first, std::uint64_t last) const {
  return impl_->rows_between(first, last);
}
void Table::for_each_row(int shard, const std::function<void(const StoredRow&)>& visit) const {
  for (const StoredRow& row : rows_between(first_of(shard), last_of(shard))) visit(row);
}
void Table::expect(std::int64_t rows, std::int64_t counts) { impl_->expect(rows, counts); }
void Table::restore(std::span<const StoredRow> rows) { impl_->restore(rows); }

std::int64_t Table::count_of_counts() const {
  const EntryCounts* const counted = impl_->admission().counts();
  return counted == nullptr ? 0 : counted->count();
}
std::vector<StoredCount> Table::counts_between(std::uint64_t first, std::uint64_t last) const {
  const EntryCounts* const counted = impl_->admission().counts();
  if (counted == nullptr) return {};
  return counted->between(first, last, steps());
}
void Table::restore(std::span<const StoredCount> counts) {
  if (auto* const counted = impl_->admission().counts()) counted->restore(counts, steps());
}

}  // namespace tutti::ps
