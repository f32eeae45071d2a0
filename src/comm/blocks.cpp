// Cuts the arguments of operations that move blocks.
#include "comm/blocks.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "device/cpu/kernels.hpp"
#include "device/cpu/reduction.hpp"

namespace tutti {
namespace {

/** Cuts `whole` into one block a rank: as `counts` says, or into equal ones without. */
template <class AnyView>
std::vector<AnyView> cut(const AnyView& whole, std::span<const std::int64_t> counts, int size) {
  std::vector<AnyView> blocks;
  std::int64_t begin = 0;
  for (int rank = 0; rank < size; ++rank) {
    const std::int64_t count =
        counts.empty() ? whole.count / size : counts[static_cast<std::size_t>(rank)];
    blocks.push_back(whole.part(begin, count));
    begin += count;
  }
  return blocks;
}

/** Up to so many ranks all learn the counts of all, in one call. */
constexpr int kFew = 32;

std::string describe_misfit(std::int64_t from, std::int64_t sent, std::int64_t to,
                            std::int64_t expected) {
  return "rank " + std::to_string(from) + " called all_to_all_v with " + std::to_string(sent) +
         " elements for rank " + std::to_string(to) + ", which expects " +
         std::to_string(expected) + " from it";
}

AgreedCounts gather_counts(Transport& transport, const Call& call) {
  const auto size = static_cast<std::size_t>(transport.size());
  std::vector<std::int64_t> own(call.counts.begin(), call.counts.end());
  own.insert(own.end(), call.arriving.begin(), call.arriving.end());
  std::vector<std::int64_t> all(own.size() * size);
  transport.run(Call::all_gather(std::span<const std::int64_t>(own), std::span(all)));
  AgreedCounts agreed;
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const std::int64_t sent = all[from * 2 * size + to];
      const std::int64_t expected = all[to * 2 * size + size + from];
      agreed.longest = std::max(agreed.longest, sent);
      if (sent == expected || agreed.mismatch) continue;
      agreed.mismatch = describe_misfit(static_cast<std::int64_t>(from), sent,
                                        static_cast<std::int64_t>(to), expected);
    }
  }
  return agreed;
}

/** Each tells each other one count; then all learn the longest, and the first pair of ranks that do
 * not fit, of which the receiver says the rest. */
AgreedCounts exchange_counts(Transport& transport, const Call& call) {
  const std::int64_t size = transport.size();
  std::vector<std::int64_t> sent(static_cast<std::size_t>(size));  // to this rank, by each
  transport.run(Call::all_to_all(call.counts, std::span(sent), transport.size()));
  std::array<std::int64_t, 2> most{*std::max_element(call.counts.begin(), call.counts.end()), 0};
  auto& [longest, misfit] = most;  // that is how many pairs there are from it on, of all in order
  for (std::int64_t from = size - 1; from >= 0; --from) {
    const auto at = static_cast<std::size_t>(from);
    if (sent[at] != call.arriving[at]) misfit = size * size - (from * size + transport.rank());
  }
  const View values(most.data(), 2, DType::i64);
  transport.run(Call::all_reduce(values, values, Reduce::max));
  AgreedCounts agreed{.longest = longest, .mismatch = {}};
  if (misfit == 0) return agreed;
  const std::int64_t from = (size * size - misfit) / size;
  const std::int64_t to = (size * size - misfit) % size;
  const auto at = static_cast<std::size_t>(from);
  std::array<std::int64_t, 2> counts{};
  if (to == transport.rank()) counts = {sent[at], call.arriving[at]};
  const View both(counts.data(), 2, DType::i64);
  // Not by a broadcast: a rank may have that before its leader has passed it on to other hosts, and
  // who throws by then keeps it from them.
  transport.run(Call::all_reduce(both, both, Reduce::sum));
  agreed.mismatch = describe_misfit(from, counts[0], to, counts[1]);
  return agreed;
}

}  // namespace

Blocks::Blocks(const Call& call, int rank, int size)
    : to(static_cast<std::size_t>(size), ConstView(nullptr, 0, call.dtype)),
      from(static_cast<std::size_t>(size), View(nullptr, 0, call.dtype)) {
  const bool gathers = call.operation == Operation::gather || call.operation == Operation::gather_v;
  const bool scatters =
      call.operation == Operation::scatter || call.operation == Operation::scatter_v;
  if (gathers) {
    to[static_cast<std::size_t>(call.root)] = call.in;
    if (rank == call.root) from = cut(call.out, call.counts, size);
  } else if (scatters) {
    if (rank == call.root) to = cut(call.in, call.counts, size);
    from[static_cast<std::size_t>(call.root)] = call.out;
  } else {
    to = cut(call.in, call.counts, size);
    from = cut(call.out, call.arriving, size);
  }
}

std::int64_t longest_block(const Call& call) {
  return call.counts.empty() ? call.count
                             : *std::max_element(call.counts.begin(), call.counts.end());
}

AgreedCounts compare_counts(Transport& transport, const Call& call) {
  return transport.size() <= kFew ? gather_counts(transport, call)
                                  : exchange_counts(transport, call);
}

void scan_gathered(Transport& transport, const Call& call) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 20;  // of all ranks at a time
  const std::int64_t width = size_of(call.dtype);
  const std::int64_t room = std::max<std::int64_t>(kBytes / transport.size() / width, 1);
  const std::int64_t most = std::min(call.count, room);
  const auto size = static_cast<std::size_t>(transport.size());
  const auto terms =
      static_cast<std::size_t>(transport.rank()) + (call.operation == Operation::scan ? 1 : 0);
  std::vector<std::byte> gathered(size * static_cast<std::size_t>(most * width));
  std::vector<const void*> sources(terms);
  for (std::int64_t begin = 0; begin < call.count; begin += most) {
    const std::int64_t count = std::min(most, call.count - begin);
    const View all(gathered.data(), count * transport.size(), call.dtype);
    transport.run(Call::all_gather(call.in.part(begin, count), all));
    if (terms == 0) continue;
    for (std::size_t i = 0; i < terms; ++i) {
      sources[i] = all.part(static_cast<std::int64_t>(i) * count, count).data;
    }
    void* const target = call.out.part(begin, count).data;
    cpu::reduce(std::span(&target, 1), sources, count, call.dtype, combine_of(call.reduction, 1));
  }
}

}  // namespace tutti
