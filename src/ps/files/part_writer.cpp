// Gathers one server's part of a checkpoint, a piece at a time.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "ps/files/checkpoint.hpp"
#include "ps/files/format.hpp"
#include "ps/files/manifest.hpp"
#include "ps/files/part_output.hpp"
#include "ps/table/place.hpp"
#include "ps/table/row_access.hpp"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;

/** What a section of rows or of a block has, about: gathered in a fraction of a millisecond. */
constexpr std::int64_t kPieceBytes = 1 << 20;

constexpr std::size_t kRowsAhead = 24;  // rows that are asked for before they are copied

fs::path path_of(const fs::path& folder, const std::string& attempt, int server) {
  check_attempt(attempt);
  return parts_folder(folder, attempt) / part_name(server);
}

/** Where interval `number` of `count` begins, which are equal parts of the numbers of 64 bits. */
std::uint64_t begin_of_interval(std::int64_t number, std::int64_t count) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{static_cast<std::uint64_t>(number)} << 64U) /
                                    static_cast<std::uint64_t>(count));
}

}  // namespace

class PartWriter::Impl {
 public:
  Impl(const ServerState& state, const fs::path& folder, const std::string& attempt, int server,
       int servers)
      : state_(state), output_(path_of(folder, attempt, server)) {
    PartDescription part{server, servers, state.round, {}, {}};
    for (const Table& table : state_.tables) part.tables.push_back(describe(table));
    cut_blocks(part.blocks);
    const std::vector<std::byte> bytes = encode(part);
    SectionBuffer buffer = output_.buffer();
    buffer.begin(std::ssize(bytes));
    buffer.append(std::span(bytes));
    write(std::move(buffer), {.kind = SectionKind::part});
    tables_ = std::move(part.tables);
    pieces_ = std::move(part.blocks);
  }

  bool next() {
    // What is empty has no section, and takes no call.
    bool wrote = false;
    while (!wrote && table_ < tables_.size()) wrote = write_of_table();
    if (!wrote && piece_ < pieces_.size()) {
      write_piece(piece_++);
      wrote = true;
    }
    if (wrote) return true;
    if (std::exchange(ended_, true)) {
      output_.wait();
      return false;
    }
    SectionBuffer buffer = output_.buffer();
    buffer.begin(0);
    write(std::move(buffer), {.kind = SectionKind::end, .count = sections_});
    output_.finish();
    return true;
  }

  bool is_busy() const { return ended_ ? !output_.has_stopped() : !output_.has_room(); }
  void stop() { output_.stop(); }
  bool has_stopped() const { return output_.has_stopped(); }

 private:
  std::span<const OwnBlock> blocks() const {
    return state_.dense == nullptr ? std::span<const OwnBlock>() : state_.dense->blocks();
  }

  /** Blocks in pieces that are described as if each were one. */
  void cut_blocks(std::vector<BlockDescription>& pieces) {
    constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
    for (std::size_t i = 0; i < blocks().size(); ++i) {
      const OwnBlock& own = blocks()[i];
      const std::int64_t count = own.block.count;
      const std::int64_t most = kPieceBytes / (kFloat * (1 + state_arrays(own.rule)));
      for (std::int64_t begin = 0; begin < count; begin += most) {
        pieces.push_back(describe(own, begin, std::min(most, count - begin)));
        places_.push_back({i, begin});
      }
    }
  }

  /** The next interval of a table's counts, and then of its rows, or what is left of it; false:
   * that is nothing. Counts come first: an id that gets its row meanwhile is in both, and whoever
   * loads that takes the row. */
  bool write_of_table() {
    const Table& table = state_.tables[table_];
    const TableDescription& description = tables_[table_];
    if (interval_ == 0) {
      const std::int64_t bytes = counts_done_ ? table.rows() * description.row_bytes()
                                              : table.count_of_counts() * kCountBytes;
      intervals_ = bytes / kPieceBytes + 1;
    }
    if (interval_ < intervals_) {
      const std::int64_t interval = interval_++;
      const std::uint64_t first = begin_of_interval(interval, intervals_);
      const std::uint64_t last = begin_of_interval(interval + 1, intervals_) - 1;
      return counts_done_ ? write_rows(table, description, first, last)
                          : write_counts(table, first, last);
    }
    interval_ = 0;
    if (std::exchange(counts_done_, !counts_done_)) ++table_;
    return false;
  }

  /** For what is of these rows, or counts. */
  template <class Stored>
  SectionHeader header_of(SectionKind kind, const std::vector<Stored>& all) const {
    SectionHeader header{.kind = kind,
                         .number = static_cast<std::int32_t>(table_),
                         .count = std::ssize(all),
                         .first_hash = ~std::uint64_t{0},
                         .last_hash = 0};
    for (const Stored& one : all) {
      const std::uint64_t hash = mix64(static_cast<std::uint64_t>(one.id));
      header.first_hash = std::min(header.first_hash, hash);
      header.last_hash = std::max(header.last_hash, hash);
    }
    return header;
  }

  bool write_rows(const Table& table, const TableDescription& description, std::uint64_t first,
                  std::uint64_t last) {
    const std::vector<StoredRow> rows = table.rows_between(first, last);
    if (rows.empty()) return false;
    const std::int64_t n = std::ssize(rows);
    SectionBuffer buffer = output_.buffer();
    buffer.begin(n * description.row_bytes());
    auto* const ids = buffer.next<std::int64_t>(n);
    auto* const last_steps = buffer.next<std::int64_t>(n);
    auto* const shows = buffer.next<float>(n);
    auto* const clicks = buffer.next<float>(n);
    auto* const weights = buffer.next<float>(n * description.dim);
    auto* const state = buffer.next<float>(n * description.state_floats);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i + kRowsAhead < rows.size()) {
        prefetch_row(rows[i + kRowsAhead].weights, description.dim);
        if (description.state_floats > 0)
          prefetch_row(rows[i + kRowsAhead].state, description.state_floats);
      }
      const StoredRow& row = rows[i];
      ids[i] = row.id;
      last_steps[i] = row.last_step;
      shows[i] = row.shows;
      clicks[i] = row.clicks;
      copy_row(row.weights, weights + static_cast<std::int64_t>(i) * description.dim,
               description.dim);
      copy_row(row.state, state + static_cast<std::int64_t>(i) * description.state_floats,
               description.state_floats);
    }
    write(std::move(buffer), header_of(SectionKind::rows, rows));
    return true;
  }

  bool write_counts(const Table& table, std::uint64_t first, std::uint64_t last) {
    const std::vector<StoredCount> counts = table.counts_between(first, last);
    if (counts.empty()) return false;
    const std::int64_t n = std::ssize(counts);
    SectionBuffer buffer = output_.buffer();
    buffer.begin(n * kCountBytes);
    auto* const ids = buffer.next<std::int64_t>(n);
    auto* const last_steps = buffer.next<std::int64_t>(n);
    auto* const sums = buffer.next<double>(n);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      ids[i] = counts[i].id;
      last_steps[i] = counts[i].last_step;
      sums[i] = counts[i].sum;
    }
    write(std::move(buffer), header_of(SectionKind::counts, counts));
    return true;
  }

  void write_piece(std::size_t i) {
    const PieceOfBlock& place = places_[i];
    const auto count = static_cast<std::size_t>(pieces_[i].count);
    const OwnBlock& own = blocks()[place.block];
    const auto state = state_.dense->state(static_cast<std::int64_t>(place.block));
    const std::int64_t arrays = state_arrays(own.rule);
    SectionBuffer buffer = output_.buffer();
    buffer.begin(pieces_[i].bytes());
    const auto values = state_.dense->values(static_cast<std::int64_t>(place.block));
    buffer.append(values.subspan(static_cast<std::size_t>(place.in_block), count));
    for (std::int64_t array = 0; array < arrays; ++array) {
      const std::int64_t begin = array * own.block.count + place.in_block;
      buffer.append(state.subspan(static_cast<std::size_t>(begin), count));
    }
    buffer.append(state.subspan(static_cast<std::size_t>(arrays * own.block.count)));
    write(std::move(buffer), {.kind = SectionKind::block, .number = static_cast<std::int32_t>(i)});
  }

  void write(SectionBuffer buffer, const SectionHeader& header) {
    output_.write(std::move(buffer), header);
    ++sections_;
  }

  struct PieceOfBlock {
    std::size_t block;
    std::int64_t in_block;
  };

  ServerState state_;
  PartOutput output_;
  std::vector<TableDescription> tables_;
  std::vector<BlockDescription> pieces_;
  std::vector<PieceOfBlock> places_;  // of each of the pieces
  // What comes next.
  std::size_t table_ = 0;
  std::int64_t interval_ = 0;
  std::int64_t intervals_ = 0;  // of this table's counts, or of its rows
  bool counts_done_ = false;
  std::size_t piece_ = 0;
  bool ended_ = false;
  std::int64_t sections_ = 0;
};

PartWriter::PartWriter(const ServerState& state, const std::string& folder,
                       const std::string& attempt, int server, int servers)
    : impl_(std::make_unique<Impl>(state, folder, attempt, server, servers)) {}
PartWriter::PartWriter(PartWriter&&) noexcept = default;
PartWriter& PartWriter::operator=(PartWriter&&) noexcept = default;
PartWriter::~PartWriter() = default;

bool PartWriter::next() { return impl_->next(); }
bool PartWriter::is_busy() const { return impl_->is_busy(); }
void PartWriter::stop() { impl_->stop(); }
bool PartWriter::has_stopped() const { return impl_->has_stopped(); }

}  // namespace tutti::ps
