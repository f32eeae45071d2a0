// Fills in, calls, and compares.
#include "simulation/steps.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/hosts/group/broadcast.hpp"
#include "comm/hosts/group/movements.hpp"
#include "comm/hosts/group/one_way.hpp"
#include "comm/hosts/group/reduce.hpp"
#include "device/cpu/reduction.hpp"
#include "simulation/contents.hpp"
#include "support/data.hpp"
#include "tutti/error.hpp"

namespace tutti::test::simulated {
namespace {

using Bytes = std::vector<std::byte>;

void require(bool holds, const char* call) {
  if (!holds) throw std::logic_error(std::string("wrong result of ") + call);
}

/** Ways to be mistaken about a call that goes one way. The last is to leave it out. */
constexpr std::int64_t kMistakes = 5;

struct Disagreement {};  ///< of members

/** One collective of one rank. */
struct Call {
  Caller& caller;
  const Step& step;
  std::size_t number;
  const HostGroup& group = caller.all.group;

  int size() const { return group.size(); }
  int own() const { return group.position(); }
  std::int64_t width() const { return size_of(step.dtype); }
  cpu::Combine combine() const { return combine_of(step.reduce, size()); }

  Bytes contribution_of(std::int64_t count) const {
    Bytes bytes(static_cast<std::size_t>(count * width()));
    fill(View(bytes.data(), count, step.dtype), Contribution{step.dtype, step.reduce.kind, own()});
    return bytes;
  }
  bool is_reduced(const Bytes& data, std::int64_t begin, std::int64_t count) const {
    const ConstView part(data.data() + begin * width(), count, step.dtype);
    return static_cast<bool>(holds(part, Reduced{step.dtype, step.reduce, size(), begin}));
  }
  std::vector<std::int64_t> uneven_offsets() const {
    std::vector<std::int64_t> offsets{0};
    for (int i = 0; i < size(); ++i) offsets.push_back(offsets.back() + length_of(step, i, 1));
    return offsets;
  }
  void fill_block(Bytes& bytes, std::int64_t begin, std::int64_t end, int from, int to) const {
    for (std::int64_t i = begin; i < end; ++i) {
      bytes[static_cast<std::size_t>(i)] = byte_of(number, from, to, i - begin);
    }
  }
  bool is_block(const Bytes& bytes, std::int64_t begin, std::int64_t end, int from, int to) const {
    for (std::int64_t i = begin; i < end; ++i) {
      if (bytes[static_cast<std::size_t>(i)] != byte_of(number, from, to, i - begin)) return false;
    }
    return true;
  }

  bool agree(std::uint64_t hash, Ahead* ahead = nullptr) const {
    const bool agreed = caller.all.agreement.agree(hash, ahead);
    require(agreed == (step.odd == kNobody), "agree");
    return agreed;
  }
  /** The odd one brings fewer numbers, or more. */
  void agree() const {
    const bool odd = own() == step.odd;
    const bool agreed = agree_on_sums(group, caller.all.agreement, odd ? 18 : 17, number,
                                      step.count * (odd ? 3 : 8));
    require(agreed == (step.odd == kNobody), "agree");
  }
  /** Who asks for `hash`, while messages that go ahead are under way. */
  Agree agreement(std::uint64_t hash) const {
    return [this, hash](Ahead* ahead) {
      if (agree(hash, ahead)) return;
      caller.all.agreement.settle(ahead);
      throw Disagreement();
    };
  }
  void all_gather() const {
    const std::int64_t block = step.count;
    Bytes out(static_cast<std::size_t>(block * size()));
    fill_block(out, own() * block, (own() + 1) * block, own(), 0);
    tutti::all_gather(group, {out.data() + own() * block, static_cast<std::size_t>(block)}, out);
    for (int i = 0; i < size(); ++i) {
      require(is_block(out, i * block, (i + 1) * block, i, 0), "all_gather");
    }
  }
  /** Whether all agree; the odd one may have sent nothing. */
  bool gathers_ahead(Bytes& data, const std::vector<std::int64_t>& offsets) const {
    const Bytes before = data;
    const bool is_odd = own() == step.odd;
    const std::byte* const block = data.data() + offsets[static_cast<std::size_t>(own())];
    try {
      if (is_odd && step.count % 2 == 0) agreement(1)(nullptr);
      gather_ahead(group, data.data(), offsets, block, agreement(is_odd ? 1 : 2));
    } catch (const Disagreement&) {
      require(data == before, "all_gather_v without agreement");
      return false;
    }
    return true;
  }
  void all_gather_v() const {
    const std::vector<std::int64_t> offsets = uneven_offsets();
    Bytes data(static_cast<std::size_t>(offsets.back()));
    const auto at = [&](int i) { return offsets[static_cast<std::size_t>(i)]; };
    fill_block(data, at(own()), at(own() + 1), own(), 1);
    if (!tutti::gathers_ahead(group, offsets.back())) {
      tutti::all_gather_v(group, data.data(), offsets);
    } else if (!gathers_ahead(data, offsets)) {
      return;
    }
    for (int i = 0; i < size(); ++i) {
      require(is_block(data, at(i), at(i + 1), i, 1), "all_gather_v");
    }
  }
  void all_to_all_v() const {
    std::vector<std::int64_t> leaving{0};
    std::vector<std::int64_t> arriving{0};
    for (int other = 0; other < size(); ++other) {
      leaving.push_back(leaving.back() + length_of(step, own(), other));
      arriving.push_back(arriving.back() + length_of(step, other, own()));
    }
    Bytes in(static_cast<std::size_t>(leaving.back()));
    Bytes out(static_cast<std::size_t>(arriving.back()));
    for (std::size_t i = 0; i < leaving.size() - 1; ++i) {
      fill_block(in, leaving[i], leaving[i + 1], own(), static_cast<int>(i));
    }
    tutti::all_to_all_v(group, in.data(), leaving, out.data(), arriving);
    for (std::size_t i = 0; i < arriving.size() - 1; ++i) {
      require(is_block(out, arriving[i], arriving[i + 1], static_cast<int>(i), own()),
              "all_to_all_v");
    }
  }
  void broadcast() const {
    Bytes data(static_cast<std::size_t>(step.count));
    if (own() == step.root) fill_block(data, 0, step.count, step.root, 0);
    broadcast_from(group, step.root, data.data(), step.count);
    require(is_block(data, 0, step.count, step.root, 0), "broadcast");
  }
  /** Of a call that goes one way, or of one in which members compare. */
  void begin(Signature signature, bool one_way) const {
    if (caller.was_one_way) caller.before = caller.signature;
    const bool goes_on = caller.was_one_way && caller.signature.root == signature.root &&
                         caller.signature.operation == Operation::broadcast;
    const bool broadcasts = one_way && signature.operation == Operation::broadcast;
    caller.in_a_row = broadcasts && goes_on ? caller.in_a_row + 1 : 0;
    caller.was_one_way = one_way;
    signature.sequence = caller.signature.sequence + 1;
    signature.before = caller.before.sequence == 0 ? 0 : caller.before.hash();
    caller.signature = signature;
    std::vector<int> givers;
    if (broadcasts && own() != signature.root) {
      givers.push_back(one_way_of(signature).giver());
    } else if (one_way && !broadcasts && own() == signature.root) {
      for (int other = 0; other < size(); ++other) {
        if (other != own()) givers.push_back(group.member(static_cast<std::size_t>(other)));
      }
    }
    caller.notes.begin(signature, caller.before, givers);
  }
  OneWayCall one_way_of(const Signature& signature) const {
    using enum OneWayCall::Direction;
    return {group,
            {signature.root, signature.count * size_of(signature.dtype), caller.in_a_row,
             signature.operation == Operation::broadcast ? from_root : to_root}};
  }
  /** As transports do, which then tell each other what they ask for; other steps do not. */
  void compare(const Signature& signature) const {
    begin(signature, false);
    if (caller.all.agreement.agree(caller.signature.hash())) return;
    caller.all.agreement.agree(0);
    throw MismatchError("the members do not agree");
  }
  std::int64_t short_count() const {
    const bool reduces = step.kind == StepKind::one_way_reduce;
    std::int64_t count = step.count;
    while (reduces ? !reduces_one_way(group, count * size_of(DType::i64))
                   : !broadcasts_one_way(group, count)) {
      count /= 2;
    }
    return count;
  }
  void one_way_reduce(std::int64_t count, int root, bool is_mistaken = false) const {
    begin(signature_of(step, count, root), true);
    const std::uint64_t call = caller.signature.sequence;
    const std::vector<std::int64_t> own_numbers = numbers_of(call, own(), count);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(own_numbers));
    if (own() != root) {
      return one_way_of(caller.signature).send(caller.notes, bytes, {});
    }
    const std::vector<std::int64_t> nothing(static_cast<std::size_t>(count), -1);
    std::vector<std::int64_t> sums = nothing;
    try {
      one_way_of(caller.signature).collect(caller.notes, bytes, adding_to(sums));
    } catch (const OneSidedMismatch&) {
      require(!is_mistaken || sums == nothing, "one-way reduce in a mismatch");
      throw;
    }
    require(sums == sums_of(call, size(), count), "one-way reduce");
  }
  void one_way(std::int64_t count, int root, bool is_mistaken = false) const {
    step.kind == StepKind::one_way_reduce ? one_way_reduce(count, root, is_mistaken)
                                          : one_way_broadcast(count, root, is_mistaken);
  }
  void one_way_broadcast(std::int64_t count, int root, bool is_mistaken = false) const {
    begin(signature_of(step, count, root), true);
    Bytes data(static_cast<std::size_t>(count));
    // Calls match by their number, also on a rank that has made fewer.
    const Call call{caller, step, caller.signature.sequence};
    if (own() == root) {
      call.fill_block(data, 0, count, root, 0);
      one_way_of(caller.signature).send(caller.notes, data, {});
    } else {
      try {
        one_way_of(caller.signature).take(caller.notes, data);
      } catch (const OneSidedMismatch&) {
        // The others may be in the middle of it.
        require(!is_mistaken || data == Bytes(data.size()), "one-way broadcast in a mismatch");
        throw;
      }
      require(call.is_block(data, 0, count, root, 0), "one-way broadcast");
    }
  }
  /** What a mistaken rank does instead. */
  void mistaken() const {
    if (!goes_one_way(step.kind)) {
      Step other = step;
      const bool may_reduce = size() <= Wire::kMostWithoutAhead;
      other.kind = may_reduce && step.count % 3 == 0 ? StepKind::one_way_reduce
                                                     : StepKind::one_way_broadcast;
      const Call call{caller, other, number};
      return call.one_way(call.short_count(), step.count % 2 == 0 ? own() : step.root, true);
    }
    const std::int64_t count = short_count();
    if (is_left_out(step)) return;
    switch (step.count % kMistakes) {
      case 0:
        return one_way(count, (step.root + 1) % size(), true);
      case 1:
        return one_way(count + 1 - 2 * (count % 2), step.root, true);
      case 2:
        return compare(Signature{.operation = Operation::barrier});
      default:  // as the root itself, or a root of nothing
        return one_way(own() == step.root ? 0 : count, own(), true);
    }
  }
  void all_reduce() const {
    Bytes data = contribution_of(step.count);
    caller.all.all_reduce.run(data.data(), step.count, step.dtype, combine());
    require(is_reduced(data, 0, step.count), "all_reduce");
  }
  void agreed_broadcast(std::int64_t count, int root, std::uint64_t hash) const {
    Bytes in(static_cast<std::size_t>(own() == root ? count : 0));
    fill_block(in, 0, std::ssize(in), root, 0);
    Bytes data(static_cast<std::size_t>(count));
    try {
      broadcast_from(group, root, data.data(), count, in.data(), agreement(hash));
    } catch (const Disagreement&) {
      return require(data == Bytes(data.size()), "broadcast without agreement");
    }
    require(own() == root || is_block(data, 0, count, root, 0), "broadcast");
  }
  void agreed_all_reduce(std::int64_t count, std::uint64_t hash) const {
    const Bytes in = contribution_of(count);
    const bool in_place = number % 2 == 0 || !caller.all.all_reduce.adds_from_elsewhere();
    Bytes data = in_place ? in : Bytes(in.size());
    const void* const from = in_place ? data.data() : in.data();
    try {
      caller.all.all_reduce.run(data.data(), count, step.dtype, combine(),
                                {.agree = agreement(hash), .first = from, .others = from});
    } catch (const Disagreement&) {
      return require(data == (in_place ? in : Bytes(in.size())), "all_reduce without agreement");
    }
    require(is_reduced(data, 0, count), "all_reduce");
  }
  /** The odd one asks for something else, of which it sends ahead other messages, or none. */
  void agreed() const {
    constexpr std::uint64_t kHash = 20;
    if (own() != step.odd) {
      if (step.kind == StepKind::agreed_all_reduce) return agreed_all_reduce(step.count, kHash);
      return agreed_broadcast(step.count, step.root, kHash);
    }
    switch (step.count % 3) {
      case 0:
        return agreed_all_reduce(step.count * 3 + 20'000, kHash + 1);
      case 1:
        return agreed_broadcast(step.count, (step.root + 1) % size(), kHash + 2);
      default:
        agree(kHash + 3);
        return caller.all.agreement.settle();
    }
  }
  /** This rank's share of some elements of a sum in lanes: the first, and how many. */
  std::pair<std::int64_t, std::int64_t> share_of(std::int64_t begin, std::int64_t length) const {
    const std::int64_t most = caller.lane->all_reduce.share_of_lane(length, step.count, step.dtype);
    const std::int64_t before = std::min(length, caller.inside->group.position() * most);
    return {begin + before, std::min(length - before, most)};
  }
  /** As transports do: all compare; then the ranks of a host meet before each segment, of which
   * they have added up what the host brings, and behind it. Each writes what is its own alone. */
  void in_lanes() const {
    if (!agree(own() == step.odd ? 18 : 17)) return;
    const HostGroup& lane = caller.lane->group;
    const DType dtype = step.dtype;
    const ReduceKind kind = step.reduce.kind;
    Bytes data(static_cast<std::size_t>(step.count * width()));
    const auto own_part = [&](std::int64_t begin, std::int64_t length) {
      const auto [from, count] = share_of(begin, length);
      return std::pair(View(data.data() + from * width(), count, dtype), from);
    };
    const auto before = [&](std::int64_t begin, std::int64_t length) {
      require(caller.inside->agreement.agree(static_cast<std::uint64_t>(begin)), "agree");
      const auto [part, from] = own_part(begin, length);
      fill(part, Contribution{dtype, kind, lane.position(), from});
    };
    const auto after = [&](std::int64_t begin, std::int64_t length) {
      const auto [part, from] = own_part(begin, length);
      require(static_cast<bool>(holds(part, Reduced{dtype, step.reduce, lane.size(), from})),
              "all_reduce in lanes");
      std::memset(part.data, 0, static_cast<std::size_t>(part.bytes()));
      require(caller.inside->agreement.agree(static_cast<std::uint64_t>(begin + length)), "agree");
    };
    caller.lane->all_reduce.run(data.data(), step.count, dtype,
                                combine_of(step.reduce, lane.size()),
                                {.before = before, .after = after});
    require(data == Bytes(data.size()), "all_reduce in lanes, beside its shares,");
  }
  void reduce_scatter_v() const {
    const std::vector<std::int64_t> offsets = uneven_offsets();
    Bytes data = contribution_of(offsets.back());
    tutti::reduce_scatter_v(group, data.data(), offsets, step.dtype, combine());
    const auto own_block = static_cast<std::size_t>(own());
    require(is_reduced(data, offsets[own_block], offsets[own_block + 1] - offsets[own_block]),
            "reduce_scatter_v");
  }
  void reduce() const {
    Bytes data = contribution_of(step.count);
    reduce_to(group, step.root, data.data(), step.count, step.dtype, combine());
    if (own() == step.root) require(is_reduced(data, 0, step.count), "reduce");
  }
};

}  // namespace

bool is_left_out(const Step& step) {
  return goes_one_way(step.kind) && step.count % kMistakes == kMistakes - 1;
}

void run_step(Caller& caller, const Step& step, std::size_t number, Manner manner) {
  const Call call{caller, step, number};
  if (manner == Manner::mistaken) return call.mistaken();
  if (manner == Manner::compared && !goes_one_way(step.kind))
    call.compare(signature_of(step, step.count, -1));
  switch (step.kind) {
    case StepKind::agree:
      return call.agree();
    case StepKind::all_gather:
      return call.all_gather();
    case StepKind::all_gather_v:
      return call.all_gather_v();
    case StepKind::all_to_all_v:
      return call.all_to_all_v();
    case StepKind::broadcast:
      return call.broadcast();
    case StepKind::all_reduce:
      return call.all_reduce();
    case StepKind::reduce_scatter_v:
      return call.reduce_scatter_v();
    case StepKind::reduce:
      return call.reduce();
    case StepKind::lanes:
      return call.in_lanes();
    case StepKind::one_way_broadcast:
    case StepKind::one_way_reduce:
      for (int in_a_row = 0; in_a_row <= step.count % 4; ++in_a_row) {
        call.one_way(call.short_count(), step.root);
      }
      return;
    case StepKind::agreed_broadcast:
    case StepKind::agreed_all_reduce:
      return call.agreed();
  }
}

}  // namespace tutti::test::simulated
