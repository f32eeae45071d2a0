// Tells what a checkpoint holds.
#include "tutti/ps/checkpoint.hpp"

#include <map>
#include <string>

#include "base/refuse.hpp"
#include "ps/files/format.hpp"
#include "ps/files/part_reader.hpp"

namespace tutti::ps {
namespace {

/** Sums of tables and parameters, in the order in which they came first. */
class Sums {
 public:
  CheckpointTable& of(const std::string& name, const std::string& rule, std::int64_t dim) {
    const auto [found, is_new] = places_.try_emplace(name, list_.size());
    if (is_new) list_.push_back({.name = name, .rule = rule, .dim = dim});
    return list_[found->second];
  }
  std::vector<CheckpointTable> take() { return std::move(list_); }

 private:
  std::map<std::string, std::size_t> places_;
  std::vector<CheckpointTable> list_;
};

class Count : public SectionVisitor {
 public:
  void begin(const PartDescription& part) {
    part_ = &part;
    for (int i = 0; i < static_cast<int>(part.tables.size()); ++i) sum_of_table(i);
  }
  bool wants(const SectionHeader& /*header*/) override { return true; }
  void rows(int table, const StoredRows& rows) override {
    CheckpointTable& sum = sum_of_table(table);
    const auto count = std::ssize(rows.ids);
    sum.rows += count;
    sum.bytes += count * rows.table.row_bytes();
  }
  void counts(int table, const StoredCounts& counts) override {
    sum_of_table(table).bytes += std::ssize(counts.ids) * kCountBytes;
  }
  void block(int block, std::span<const float> values, std::span<const float> state) override {
    const BlockDescription& description = part_->blocks[static_cast<std::size_t>(block)];
    CheckpointTable& sum = dense_.of(description.parameter, description.rule, 1);
    sum.rows += std::ssize(values);
    sum.bytes += static_cast<std::int64_t>(values.size_bytes() + state.size_bytes());
  }

  std::vector<CheckpointTable> tables() { return tables_.take(); }
  std::vector<CheckpointTable> dense() { return dense_.take(); }

 private:
  CheckpointTable& sum_of_table(int table) {
    const TableDescription& description = part_->tables[static_cast<std::size_t>(table)];
    return tables_.of(description.name, description.rule, description.dim);
  }

  const PartDescription* part_ = nullptr;
  Sums tables_;
  Sums dense_;
};

}  // namespace

CheckpointContents inspect_checkpoint(const std::string& folder) {
  const Manifest manifest = read_manifest(folder);
  CheckpointContents contents;
  contents.servers = static_cast<int>(manifest.parts.size());
  Count count;
  for (int number = 0; number < contents.servers; ++number) {
    PartReader part(folder, manifest, number);
    count.begin(part.description());
    part.visit(count);
    contents.round = std::max(contents.round, part.description().round);
  }
  contents.tables = count.tables();
  contents.dense = count.dense();
  return contents;
}

}  // namespace tutti::ps
