// Puts the options of a job into words.
#include "ps/terms.hpp"

#include <set>
#include <string>
#include <variant>

#include "base/refuse.hpp"
#include "ps/modes/check.hpp"
#include "ps/table/describe.hpp"
#include "ps/table/row_reader.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {
namespace {

struct DescribeMode {
  std::string operator()(const Sync& mode) const {
    return std::string("sync") + (mode.continue_after_loss ? ": continue_after_loss" : "");
  }
  std::string operator()(const Async& mode) const {
    return "async: max_merge_var_num " + std::to_string(mode.max_merge_var_num) +
           ", send_queue_size " + std::to_string(mode.send_queue_size) +
           (mode.staleness ? ", staleness " + std::to_string(*mode.staleness) : "") +
           (mode.divide_by_workers ? ", divide_by_workers" : "");
  }
  std::string operator()(const HalfAsync& mode) const {
    return "half-async: merge_batches " + std::to_string(mode.merge_batches);
  }
  std::string operator()(const Geo& mode) const {
    return "geo: push_steps " + std::to_string(mode.push_steps);
  }
};

const char* name_of(WireFormat format) {
  switch (format) {
    case WireFormat::f16:
      return "f16";
    case WireFormat::bf16:
      return "bf16";
    case WireFormat::f32:
      break;
  }
  return "f32";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "(" + text + ")";
}

/** Workers' copies of a row cannot hear that the server's begins, or begins again, later. */
void check_for_geo(const TableSpec& table) {
  const char* option = !std::holds_alternative<AdmitAll>(table.entry) ? "entry"
                       : evicts(table)                                ? "eviction"
                                                                      : nullptr;
  if (option == nullptr) return;
  refuse("table '", table.name, "': ", option,
         " is set, but in Geo mode rows are admitted and kept");
}

}  // namespace

void check(const FleetOptions& options) {
  check(options.mode);
  std::set<std::string> names;
  for (const TableSpec& table : options.tables) {
    check(table);
    if (std::holds_alternative<Geo>(options.mode)) check_for_geo(table);
    if (!names.insert(table.name).second) refuse("two tables have the name '", table.name, "'");
  }
  if (options.timeout && options.timeout->count() <= 0) {
    refuse("FleetOptions::timeout is ", options.timeout->count(), " ms, but must be positive");
  }
  if (options.every.count() < 0) {
    refuse("FleetOptions::every is ", options.every.count(), " s, but must not be negative");
  }
  if (options.checkpoint.empty() && (options.every.count() > 0 || options.save_at_end)) {
    refuse(options.save_at_end ? "FleetOptions::save_at_end" : "FleetOptions::every",
           " is set, but FleetOptions::checkpoint, the folder to write to, is empty");
  }
  if (!options.checkpoint.empty() && options.every.count() == 0 && !options.save_at_end) {
    refuse("FleetOptions::checkpoint is '", options.checkpoint,
           "', but neither FleetOptions::every nor FleetOptions::save_at_end is set: nothing would "
           "be written there");
  }
}

Terms terms_of(const FleetOptions& options, const Placement::Impl& place,
               const DenseLayout& layout) {
  Terms terms{std::to_string(place.workers.size()) + " workers",
              std::to_string(place.servers.size()) + " servers",
              "mode " + std::visit(DescribeMode{}, options.mode),
              "seed " + std::to_string(options.seed),
              std::string("rows travel as ") + name_of(options.wire)};
  for (const TableSpec& table : options.tables) {
    terms.push_back("table '" + table.name + "': " + describe(table));
  }
  for (const DenseParameter& parameter : options.dense) {
    terms.push_back("parameter '" + parameter.name + "': shape " + shape_text(parameter.shape) +
                    "; rule " + describe(parameter.rule) + (parameter.shared ? "; shared" : ""));
  }
  if (!options.dense.empty()) {
    terms.push_back("slices: " +
                    (options.slicing.slice
                         ? "of at least " + std::to_string(options.slicing.min_block_size)
                         : std::string("none")));
    terms.push_back("servers of the blocks: a choice with the hash " +
                    std::to_string(hash_of(layout)));
  }
  return terms;
}

}  // namespace tutti::ps
