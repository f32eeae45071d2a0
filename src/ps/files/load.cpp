// Reads what belongs to a server of a checkpoint: first all is checked, then all is put there.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "base/refuse.hpp"
#include "ps/files/checkpoint.hpp"
#include "ps/files/format.hpp"
#include "ps/files/part_reader.hpp"
#include "ps/table/place.hpp"
#include "ps/table/rules.hpp"

namespace tutti::ps {
namespace {

/** This server, as it is to be. */
struct Receiver {
  ServerState state;
  int server = 0;
  int servers = 1;
  std::map<std::string, Table*> tables;

  std::span<const OwnBlock> blocks() const {
    return state.dense == nullptr ? std::span<const OwnBlock>() : state.dense->blocks();
  }
};

/** Hashes of the ids that a server has with Split::hash. */
struct HashInterval {
  std::uint64_t first;
  std::uint64_t last;
};

HashInterval interval_of(int server, int servers) {
  // place_of() rounds hash * servers / 2^64 down, so an interval begins where that is rounded up.
  __extension__ using Wide = unsigned __int128;
  const auto begin = [&](int number) {
    const Wide product = Wide{static_cast<unsigned>(number)} << 64U;
    return (product + static_cast<unsigned>(servers) - 1) / static_cast<unsigned>(servers);
  };
  return {static_cast<std::uint64_t>(begin(server)),
          static_cast<std::uint64_t>(begin(server + 1) - 1)};
}

/** What of a part's sections the receiver has to look at. */
class OwnSections : public SectionVisitor {
 public:
  OwnSections(const Receiver& receiver, const PartDescription& part)
      : receiver_(receiver), part_(part) {}

  bool wants(const SectionHeader& header) override {
    const bool has_table = header.number >= 0 && header.number < std::ssize(part_.tables);
    if (header.kind == SectionKind::block || !has_table) return true;
    const auto split = static_cast<std::uint32_t>(own(header.number).identity().spec.split);
    if (part_.servers == receiver_.servers && description(header.number).split == split) {
      return part_.server == receiver_.server;
    }
    const HashInterval own = interval_of(receiver_.server, receiver_.servers);
    return split != static_cast<std::uint32_t>(Split::hash) ||
           (header.first_hash <= own.last && header.last_hash >= own.first);
  }

 protected:
  const TableDescription& description(int table) const {
    return part_.tables[static_cast<std::size_t>(table)];
  }
  Table& own(int table) const { return *receiver_.tables.at(description(table).name); }
  bool is_own(const Table& table, std::int64_t id) const {
    return place_of(id, table.identity().spec.split, receiver_.servers).server == receiver_.server;
  }

  const Receiver& receiver_;
  const PartDescription& part_;
};

/** Adam's count of steps is looked up in a table. */
void require_state(const std::string& path, const std::string& whose, const Rule& rule,
                   std::span<const float> state) {
  constexpr float kMostSteps = 0x1p24F;  // a float counts no further
  if (!std::holds_alternative<Adam>(rule) || state.empty()) return;
  if (state.back() >= 0.0F && state.back() <= kMostSteps) return;
  refuse(path, ": ", whose, " has ", state.back(), " steps");
}

/** The receiver's dense blocks, put together of those in files, which may be cut otherwise. */
class DensePieces {
 public:
  explicit DensePieces(const Receiver& receiver) {
    for (std::size_t i = 0; i < receiver.blocks().size(); ++i) {
      const auto values = static_cast<std::size_t>(receiver.blocks()[i].block.count);
      const auto state = receiver.state.dense->state(static_cast<std::int64_t>(i)).size();
      blocks_.push_back(
          {receiver.blocks()[i], std::vector<float>(values), std::vector<float>(state)});
    }
  }

  void add(const std::string& path, const BlockDescription& piece, std::span<const float> values,
           std::span<const float> state) {
    for (Own& own : blocks_) {
      const Block& block = own.own.block;
      if (own.own.parameter != piece.parameter) continue;
      require_state(path, "block '" + own.own.block.name + "'", own.own.rule, state);
      const std::int64_t begin = std::max(block.offset, piece.offset);
      const std::int64_t end = std::min(block.offset + block.count, piece.offset + piece.count);
      if (begin >= end) continue;
      const auto copy = [&](std::span<const float> from, std::vector<float>& to,
                            std::int64_t array) {
        std::copy_n(from.begin() + array * piece.count + begin - piece.offset, end - begin,
                    to.begin() + array * block.count + begin - block.offset);
      };
      const std::int64_t arrays = state_arrays(own.own.rule);
      copy(values, own.values, 0);
      for (std::int64_t array = 0; array < arrays; ++array) copy(state, own.state, array);
      // What follows the arrays is a sum or a count of steps; servers may have been asked for their
      // pieces at different times.
      const auto rest = own.state.begin() + arrays * block.count;
      std::transform(state.begin() + arrays * piece.count, state.end(), rest, rest,
                     [](float there, float here) { return std::max(there, here); });
      own.filled += end - begin;
    }
  }

  /** Throws InvalidArgument unless all of all blocks was there. */
  void check_filled(const std::string& path) const {
    for (const Own& own : blocks_) {
      if (own.filled == own.own.block.count) continue;
      refuse(path, ": has ", own.filled, " of ", own.own.block.count, " elements of block '",
             own.own.block.name, "'");
    }
  }

  void restore(DenseStore& store) const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      store.restore(static_cast<std::int64_t>(i), blocks_[i].values, blocks_[i].state);
    }
  }

 private:
  struct Own {
    OwnBlock own;
    std::vector<float> values;
    std::vector<float> state;
    std::int64_t filled = 0;
  };

  std::vector<Own> blocks_;
};

/** How many ids of a table are the receiver's. */
struct OwnIds {
  std::int64_t rows = 0;
  std::int64_t counts = 0;
};

class Check : public OwnSections {
 public:
  /** Counts what is the receiver's, by the name of the table. */
  Check(const Receiver& receiver, const PartReader& part, DensePieces& dense,
        std::map<std::string, OwnIds>& own_ids)
      : OwnSections(receiver, part.description()),
        path_(part.path()),
        dense_(dense),
        own_ids_(own_ids) {}

  void rows(int table, const StoredRows& rows) override {
    const TableSpec& spec = own(table).identity().spec;
    const std::string whose = "table '" + rows.table.name + "'";
    std::int64_t& own_rows = own_ids_[rows.table.name].rows;
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
      const std::int64_t id = rows.ids[i];
      own_rows += is_own(own(table), id) ? 1 : 0;
      require_in_dictionary(spec, id);
      require_next(table, id, last_row_[table]);
      const auto floats = static_cast<std::size_t>(rows.table.state_floats);
      require_state(path_, whose, spec.rule, rows.state.subspan(i * floats, floats));
    }
  }
  void counts(int table, const StoredCounts& counts) override {
    const TableSpec& spec = own(table).identity().spec;
    for (const std::int64_t id : counts.ids) {
      own_ids_[spec.name].counts += is_own(own(table), id) ? 1 : 0;
      require_in_dictionary(spec, id);
      require_next(table, id, last_count_[table]);
    }
  }
  void block(int block, std::span<const float> values, std::span<const float> state) override {
    dense_.add(path_, part_.blocks[static_cast<std::size_t>(block)], values, state);
  }

 private:
  void require_in_dictionary(const TableSpec& spec, std::int64_t id) const {
    if (spec.dict_size == 0 || (id >= 0 && id < spec.dict_size)) return;
    refuse(path_, ": table '", spec.name, "' has id ", id, ", beyond dict_size ", spec.dict_size);
  }

  /** Rows and counts come in the order of their places, so that no id comes twice. */
  void require_next(int table, std::int64_t id, std::optional<std::uint64_t>& last) {
    const auto split = static_cast<Split>(description(table).split);
    const IdPlace place = place_of(id, split, part_.servers);
    if (place.server != part_.server || (last && place.within <= *last)) {
      refuse(path_, ": table '", description(table).name, "' has id ", id, " out of its place");
    }
    last = place.within;
  }

  const std::string& path_;
  DensePieces& dense_;
  std::map<std::string, OwnIds>& own_ids_;
  // Places of what was last of each table.
  std::map<int, std::optional<std::uint64_t>> last_row_;
  std::map<int, std::optional<std::uint64_t>> last_count_;
};

class Restore : public OwnSections {
 public:
  using OwnSections::OwnSections;

  void rows(int table, const StoredRows& rows) override {
    Table& own_table = own(table);
    own_rows_.clear();
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
      if (!is_own(own_table, rows.ids[i])) continue;
      StoredRow& row = own_rows_.emplace_back(rows.row(i));
      row.last_step = last_step(table, row.last_step);
    }
    own_table.restore(own_rows_);
  }
  void counts(int table, const StoredCounts& counts) override {
    Table& own_table = own(table);
    own_counts_.clear();
    for (std::size_t i = 0; i < counts.ids.size(); ++i) {
      if (!is_own(own_table, counts.ids[i])) continue;
      own_counts_.push_back({.id = counts.ids[i],
                             .last_step = last_step(table, counts.last_steps[i]),
                             .sum = counts.sums[i]});
    }
    own_table.restore(own_counts_);
  }
  void block(int /*block*/, std::span<const float> /*values*/,
             std::span<const float> /*state*/) override {}

 private:
  /** So that all keep their age. */
  std::int64_t last_step(int table, std::int64_t there) const {
    const std::int64_t most = description(table).steps;
    return std::clamp<std::int64_t>(there, 0, most) + own(table).steps() - most;
  }

  std::vector<StoredRow> own_rows_;
  std::vector<StoredCount> own_counts_;
};

template <class Value>
void require_alike(const std::string& path, const std::string& whose, const char* what,
                   const Value& there, const Value& here) {
  if (there != here) {
    refuse(path, ": ", whose, " has ", what, " ", there, " there, but ", here, " here");
  }
}

/** The part is of the receiver's tables and parameters. */
void check_description(const PartReader& part, const Receiver& receiver) {
  const PartDescription& description = part.description();
  for (const TableDescription& there : description.tables) {
    const auto found = receiver.tables.find(there.name);
    if (found == receiver.tables.end()) {
      refuse(part.path(), ": has a table '", there.name, "' that is not here");
    }
    const TableDescription here = describe(*found->second);
    const std::string whose = "table '" + there.name + "'";
    require_alike(part.path(), whose, "dim", there.dim, here.dim);
    require_alike(part.path(), whose, "rule", there.layout, here.layout);
    require_alike(part.path(), whose, "initial values", there.initial, here.initial);
    if (there.seed != here.seed) {  // numbers made of the job's seed, which nobody has seen
      refuse(part.path(), ": ", whose, " was written with another seed than this job has");
    }
    require_alike(part.path(), whose, "floats of state", there.state_floats, here.state_floats);
  }
  for (const auto& [name, table] : receiver.tables) {
    const auto is_it = [&, &key = name](const TableDescription& there) {
      return there.name == key;
    };
    const auto times = std::count_if(description.tables.begin(), description.tables.end(), is_it);
    if (times != 1) refuse(part.path(), ": has ", times, " tables '", name, "', not one");
  }
  for (const BlockDescription& there : description.blocks) {
    for (const OwnBlock& own : receiver.blocks()) {
      if (own.parameter != there.parameter) continue;
      const std::string whose = "parameter '" + there.parameter + "'";
      const BlockDescription here = describe(own, 0, there.count);
      require_alike(part.path(), whose, "elements", there.elements, here.elements);
      require_alike(part.path(), whose, "rule", there.layout, here.layout);
      require_alike(part.path(), whose, "floats of state", there.state_floats, here.state_floats);
    }
  }
}

}  // namespace

std::int64_t load_checkpoint(const std::string& folder, const ServerState& state, int server,
                             int servers) {
  Receiver receiver{state, server, servers, {}};
  for (Table& table : state.tables) receiver.tables[table.identity().spec.name] = &table;
  const Manifest manifest = read_manifest(folder);
  DensePieces dense(receiver);
  std::int64_t round = 0;
  std::map<std::string, std::int64_t> steps;
  std::map<std::string, OwnIds> own_ids;
  const auto parts = static_cast<int>(manifest.parts.size());
  for (int number = 0; number < parts; ++number) {
    PartReader part(folder, manifest, number);
    check_description(part, receiver);
    Check check(receiver, part, dense, own_ids);
    part.visit(check);
    if (number == 0) round = part.description().round;
    require_round(part.path(), part.description().round, round);
    for (const TableDescription& table : part.description().tables) {
      steps[table.name] = std::max(steps[table.name], table.steps);
    }
  }
  dense.check_filled(folder);

  for (const auto& [name, table] : receiver.tables) {
    table->set_steps(steps[name]);
    table->expect(own_ids[name].rows, own_ids[name].counts);
  }
  for (int number = 0; number < parts; ++number) {
    PartReader part(folder, manifest, number);
    Restore restore(receiver, part.description());
    part.visit(restore);
  }
  if (state.dense != nullptr) dense.restore(*state.dense);
  return round;
}

}  // namespace tutti::ps
