// A server in GEO mode: adds what workers have learnt, and tells each what others have changed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/refuse.hpp"
#include "ps/modes/server_mode.hpp"
#include "ps/table/merge.hpp"

namespace tutti::ps {
namespace {

/** Ids of a table that others than one worker have changed since it last pulled them. */
class ChangedIds {
 public:
  void add(std::span<const std::int64_t> ids) { changed_.add(ids, nullptr); }

  /** The next, `count` at most. Ids that change while a worker takes them in parts come again; and
   * with `again` so do those taken last. */
  std::span<const std::int64_t> take(std::size_t count, bool again) {
    if (again) taken_ = last_;
    if (taken_ == taking_.ids().size()) {
      std::swap(taking_, changed_);
      changed_.clear();
      taken_ = 0;
    }
    last_ = std::exchange(taken_, std::min(taking_.ids().size(), taken_ + count));
    return taking_.ids().subspan(last_, taken_ - last_);
  }

 private:
  Merger changed_{0};
  Merger taking_{0};
  std::size_t last_ = 0;   // where those taken last begin,
  std::size_t taken_ = 0;  // and end
};

class GeoServer final : public ServerMode {
 public:
  GeoServer(Stores& stores, const Members& members, Links& links)
      : ServerMode(stores, members, links), changed_(static_cast<std::size_t>(members.at_start())) {
    for (std::vector<ChangedIds>& tables : changed_) tables.resize(stores.tables().size());
    for (std::size_t table = 0; table < stores.tables().size(); ++table) note_all(table);
  }

  void push(const Request& request) override {
    // First: who is told of rows that then do not change has lost nothing.
    if (request.header.kind == RequestKind::add_rows) {
      const RowsOfRequest rows = stores_.rows(request.header, request.payload);
      note(static_cast<std::size_t>(request.header.table), rows.ids, request.worker);
    }
    stores_.apply(request, 1.0F);
    answer(request, {});
  }

  std::optional<Answer> end_round(const Request&, bool) override { return Answer{}; }

  Answer pull_changed(const Request& request) override {
    const auto table = static_cast<std::size_t>(request.header.table);
    if (table >= stores_.tables().size() || request.header.count < 1)
      refuse("pull_changed: ", request.header.count, " rows of table ", request.header.table);
    ChangedIds& changed = changed_[static_cast<std::size_t>(request.worker)][table];
    const auto ids = changed.take(static_cast<std::size_t>(request.header.count),
                                  (request.header.flags & kAgain) != 0);
    const Table& from = stores_.tables()[table];
    Answer answer;
    answer.payload.resize(ids.size_bytes() +
                          ids.size() * static_cast<std::size_t>(from.identity().spec.dim) *
                              sizeof(float));
    if (ids.empty()) return answer;
    std::memcpy(answer.payload.data(), ids.data(), ids.size_bytes());
    from.lookup(ids, {}, reinterpret_cast<float*>(answer.payload.data() + ids.size_bytes()));
    return answer;
  }

  void remove(int worker, const std::string*) override {
    changed_[static_cast<std::size_t>(worker)].clear();
  }

 private:
  static constexpr int kNobody = -1;

  void note(std::size_t table, std::span<const std::int64_t> ids, int changed_by) {
    for (int worker = 0; worker < members_.at_start(); ++worker) {
      if (worker != changed_by && members_.lives(worker))
        changed_[static_cast<std::size_t>(worker)][table].add(ids);
    }
  }

  /** What a checkpoint has brought is news to all. */
  void note_all(std::size_t table) {
    const Table& from = stores_.tables()[table];
    for (int shard = 0; shard < Table::kShards; ++shard) {
      std::vector<std::int64_t> ids;
      from.for_each_row(shard, [&](const StoredRow& row) { ids.push_back(row.id); });
      note(table, ids, kNobody);
    }
  }

  std::vector<std::vector<ChangedIds>> changed_;  // of each worker, of each table
};

}  // namespace

std::unique_ptr<ServerMode> make_server_mode(const Geo&, Stores& stores, const Members& members,
                                             Links& links) {
  return std::make_unique<GeoServer>(stores, members, links);
}

}  // namespace tutti::ps
