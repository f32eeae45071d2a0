// Checks that all ranks train the same model.
#include "opt/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "device/device_memory.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

/** What a rank tells the others about its model. */
enum Field : std::size_t {
  kParameters,
  kElements,
  kBucket,
  kMemory,
  kSizes,
  kLayouts,
  kValues,
  kFields
};
using Summary = std::array<std::int64_t, kFields>;

/** A 64-bit hash in the manner of FNV-1a, by words instead of bytes. */
class Hash {
 public:
  void add(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001B3U;
    state_ ^= state_ >> 32U;  // a product alone never carries high bits down
  }
  std::int64_t value() const { return static_cast<std::int64_t>(state_); }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325U;
};

std::int64_t hash_sizes(const ParameterTable& table) {
  Hash hash;
  for (const ParameterRange& range : table.ranges()) {
    hash.add(static_cast<std::uint64_t>(range.count));
  }
  for (const std::int64_t row : table.row_elements()) hash.add(static_cast<std::uint64_t>(row));
  return hash.value();
}

std::int64_t hash_layouts(const ParameterTable& table) {
  Hash hash;
  for (std::size_t i = 0; i < table.size(); ++i) hash.add(hash_text(table.layout(i)));
  return hash.value();
}

std::int64_t hash_values(const std::vector<ParameterRange>& ranges, const Stream& home) {
  Hash hash;
  for (const ParameterRange& range : ranges) {
    const std::vector<float> values =
        read(home, {range.parameter, range.count, DType::f32, home.device()});
    for (std::int64_t i = 0; i < range.count; i += 2) {
      std::uint64_t word = 0;
      std::memcpy(&word, values.data() + i, i + 1 < range.count ? 8 : 4);
      hash.add(word);
    }
  }
  return hash.value();
}

std::string sizes_text(const Summary& summary) {
  return std::to_string(summary[kParameters]) + " parameters of " +
         std::to_string(summary[kElements]) + " elements in buckets of " +
         std::to_string(summary[kBucket]) +
         (summary[kMemory] == static_cast<std::int64_t>(DeviceKind::cpu) ? "" : " on GPUs");
}

bool same_sizes(const Summary& a, const Summary& b) {
  return std::equal(a.begin(), a.begin() + kLayouts, b.begin());
}

[[noreturn]] void refuse_sizes(const std::vector<Summary>& all,
                               const std::vector<std::size_t>& others) {
  const std::string first = sizes_text(all[0]);
  const std::string other = sizes_text(all[others.front()]);
  throw InvalidArgument("the parameters of " + ranks_text(others) + " are not those of rank 0: " +
                        (first == other ? "their sizes differ, or the order of their sizes, or "
                                          "which are tables of rows"
                                        : first + " on rank 0, " + other + " on rank " +
                                              std::to_string(others.front())));
}

/** What all ranks tell about themselves, one after the other. */
template <class T>
std::vector<T> gather(Communicator& communicator, const std::vector<T>& own) {
  std::vector<T> all(own.size() * static_cast<std::size_t>(communicator.world_size()));
  communicator.all_gather(std::span<const T>(own), std::span<T>(all));
  return all;
}

/** All ranks know that the layouts of `others` differ, and tell each other the first that does. */
[[noreturn]] void refuse_layouts(Communicator& communicator, const ParameterTable& table,
                                 const std::vector<std::size_t>& others) {
  std::vector<std::int64_t> own(table.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] = static_cast<std::int64_t>(hash_text(table.layout(i)));
  }
  const std::vector<std::int64_t> all = gather(communicator, own);
  const std::size_t other = others.front();
  std::size_t first = own.size();
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (all[i] == all[other * own.size() + i]) continue;
    if (first == own.size() || table.range(i).offset < table.range(first).offset) first = i;
  }
  constexpr std::size_t kMost = 200;  // bytes of a layout that are shown
  std::vector<std::uint8_t> text(kMost);
  const std::string& layout = table.layout(first);
  std::copy_n(layout.begin(), std::min(layout.size(), kMost), text.begin());
  const std::vector<std::uint8_t> texts = gather(communicator, text);
  const auto shown = [&](std::size_t rank) {
    const auto begin = texts.begin() + static_cast<std::ptrdiff_t>(rank * kMost);
    const std::string told(begin, std::find(begin, begin + kMost, 0));
    return told.empty() ? "of no layout" : told;
  };
  throw MismatchError(
      table.name(first) + " is " + shown(0) + " on rank 0, but " + shown(other) + " on rank " +
      std::to_string(other) +
      (others.size() == 1 ? ""
                          : "; the layouts of " + ranks_text(others) + " are not those of rank 0"));
}

}  // namespace

void check_agreement(Communicator& communicator, const ParameterTable& table,
                     std::int64_t bucket_elements, Agreement agreement, const Stream& home) {
  const std::vector<ParameterRange> ranges = table.ranges();
  const bool values = agreement == Agreement::layout_and_values;
  Summary own{
      static_cast<std::int64_t>(ranges.size()),       table.elements(),  bucket_elements,
      static_cast<std::int64_t>(table.device().kind), hash_sizes(table), hash_layouts(table),
      values ? hash_values(ranges, home) : 0};
  std::vector<Summary> all(static_cast<std::size_t>(communicator.world_size()));
  communicator.all_gather(
      ConstView(own.data(), kFields, DType::i64),
      View(all.data(), static_cast<std::int64_t>(all.size() * kFields), DType::i64));

  std::vector<std::size_t> other_sizes;
  std::vector<std::size_t> other_layouts;
  std::vector<std::size_t> other_values;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (!same_sizes(all[rank], all[0])) other_sizes.push_back(rank);
    if (all[rank][kLayouts] != all[0][kLayouts]) other_layouts.push_back(rank);
    if (all[rank][kValues] != all[0][kValues]) other_values.push_back(rank);
  }
  if (!other_sizes.empty()) refuse_sizes(all, other_sizes);
  if (!other_layouts.empty()) refuse_layouts(communicator, table, other_layouts);
  if (!other_values.empty()) {
    throw InvalidArgument("the parameters of " + ranks_text(other_values) +
                          " differ in value from those of rank 0: call register_parameters() on "
                          "all ranks before the first backward pass");
  }
}

}  // namespace tutti
