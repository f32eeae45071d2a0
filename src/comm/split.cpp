// Gathers the colors and keys, and picks this rank's part.
#include "comm/split.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace tutti {
namespace {

struct Entry {
  std::int32_t color = 0;
  std::int32_t key = 0;
  std::array<std::byte, UniqueId::kBytes> ticket{};
};

}  // namespace

SplitPlan plan_split(Transport& transport, int color, int key, const UniqueId& ticket) {
  const Entry own{color, key, ticket.bytes()};
  std::vector<Entry> entries(static_cast<std::size_t>(transport.size()));
  constexpr std::int64_t kEntry = sizeof(Entry);
  transport.run(Call::all_gather(ConstView(&own, kEntry, DType::u8),
                                 View(entries.data(), kEntry * transport.size(), DType::u8)));

  SplitPlan plan;
  if (color < 0) return plan;
  const auto entry_of = [&](int rank) -> const Entry& {
    return entries[static_cast<std::size_t>(rank)];
  };
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (entry_of(rank).color == color) plan.members.push_back(rank);
  }
  std::stable_sort(plan.members.begin(), plan.members.end(),
                   [&](int a, int b) { return entry_of(a).key < entry_of(b).key; });
  const auto self = std::find(plan.members.begin(), plan.members.end(), transport.rank());
  plan.rank = static_cast<int>(self - plan.members.begin());
  for (const int member : plan.members) {
    plan.tickets.push_back(UniqueId::from_bytes(entry_of(member).ticket));
  }
  return plan;
}

}  // namespace tutti
