// Collectives between hosts: direct exchange among one rank of each host over a Wire.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "comm/batch.hpp"
#include "comm/hosts/notes.hpp"
#include "comm/hosts/segments.hpp"
#include "comm/hosts/shards.hpp"
#include "device/cpu/kernels.hpp"

namespace tutti {

/**
 * The collectives of one rank per host. Positions are indices into `members`, which are global
 * ranks in the order of the hosts. All calls block, at most to the wire's deadline; memory is
 * this process's own. Apart from agree() nothing is checked here.
 *
 * Every shard goes straight to its owner, who adds the hosts' contributions in the order of the
 * hosts and hands the result straight to everybody: 2 (H-1)/H times the bytes a link, which is
 * the least there is, one rounding for 16-bit types, and an order of additions that does not
 * depend on the shard. Source: direct (pairwise) reduce-scatter and all-gather, Thakur,
 * Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
 * The root of a long reduce may own none, so that its link brings the bytes once.
 * Shards travel in windows, so that adding, sending and receiving overlap and temporary memory
 * stays small. Small messages go whole to everybody, who adds them all: one round, the same order;
 * so do long ones of two members that are not alone on their hosts: as many bytes as in shards.
 *
 * More than kMostDirect members stand in groups (grid.hpp) for an all_reduce, a reduce or a
 * broadcast that does not go whole, so that messages stay long, and those few whom one talks to. A
 * share of the data has a holder in each group, which adds the contributions of its group in the
 * order of the members; the holders of a share add up these sums, each a cell of it, in the order
 * of the groups. Results go back the same way: as many bytes a link as above, and one rounding, as
 * sums of 16-bit types travel as floats between groups. Source: the 2D-Torus all-reduce of Mikami
 * et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash", 2018; here members
 * of a group, and holders of a share, exchange directly and not in rings.
 *
 * Among up to kCentred members with connections a long broadcast goes from each to the next one,
 * who sends on what comes before all of it has: once the bytes a link, in the fewest messages.
 *
 * Where members still have to agree, and do not stand in groups, the first window of a long message
 * goes ahead of that, by itself if it is one message, or behind headers where three to kCentred
 * members agree: to memory of the group, or no further than the wire, so nothing is written before
 * they agree.
 */
class HostGroup {
 public:
  static constexpr std::int64_t kCacheLine = 64;  ///< in bytes
  /** Of memory for what arrives in a call, in bytes, with up to 4096 members. */
  static constexpr std::int64_t kMostScratch = std::int64_t{32} * 1024 * 1024;
  /** A message to each of so many members takes less time than the steps that would save some. */
  static constexpr int kMostDirect = 32;

  /** Which of several groups over the same hosts it is, that share the shards of a long sum. */
  struct Lane {
    int number = 0;
    int of = 1;
  };
  /** `wire` outlives it. Only members make calls. Whether they are all `alone` on their hosts: then
   * nobody meets others between windows, and longer ones take less time. A group that is one of
   * several lanes adds up only what is its own, see share_of_lane(). */
  HostGroup(Wire& wire, std::vector<int> members, bool alone, Lane lane);
  HostGroup(Wire& wire, std::vector<int> members, bool alone = false)
      : HostGroup(wire, std::move(members), alone, {}) {}

  int position() const { return position_; }
  int size() const { return static_cast<int>(members_.size()); }
  /** The global rank of member `position`. */
  int member(std::size_t position) const { return members_[position]; }

  /** What members bring to agree(): each `each` bytes, or only one of them. */
  struct Brought {
    static constexpr int kAll = -1;
    std::span<const std::byte> own;
    std::int64_t each = 0;
    int only = kAll;  ///< the position of the only one that brings something

    std::int64_t bytes_of(int position) const {
      return only == kAll || only == position ? each : 0;
    }
  };
  /** Makes of what members have brought, by position, what all get. */
  using Merge = std::function<void(std::span<const void* const> parts)>;

  /**
   * Whether all members came with the same `hash`; all get the same answer. Also a barrier: none
   * returns before all have called. What members bring goes along; if they agree, `merge` fills
   * `out` with the same bytes everywhere. Only what carries() allows.
   *
   * Up to kCentred members bring all to the first, who answers: two steps, and the fewest messages;
   * or, with a first window behind their headers, which go ahead, tell all others: one step.
   * Two swap what they bring. More disseminate: in step k everybody gets from the one 2^k further
   * what that has by then, so all have all after log2(H) steps (Bruck and others, 1997).
   */
  bool agree(std::uint64_t hash) { return agree(hash, {}, {}, {}); }
  bool agree(std::uint64_t hash, const Brought& brought, std::span<std::byte> out,
             const Merge& merge);
  /** Whether the first window of an all_reduce of `bytes` goes ahead of an agreement: if it is one
   * message of several, or may be more behind headers to all, and not among so many that they stand
   * in groups. */
  bool goes_ahead(std::int64_t bytes) const {
    if (goes_whole(bytes) || stand_in_groups()) return false;
    return is_centred() || !(is_pair(bytes) || has_long_windows(bytes));
  }
  /** Whether all_reduce() may be told where what it adds lies: see Around. */
  bool adds_from_elsewhere() const { return !stand_in_groups(); }
  /** By all members, who do not agree on a call: brings what some have sent ahead to an end. */
  void settle();
  /** The member, as a rank, who came last to the last agree(), as far as is known. */
  int last() const { return members_[static_cast<std::size_t>(last_)]; }
  /** Whether it saves time that members bring `each` bytes, of which become `out` bytes. */
  bool carries(std::int64_t each, std::int64_t out) const;
  /** Calls agree() once, and throws if the members do not: after settle(). */
  using Agree = std::function<void()>;

  /** Every member's `in`, in the order of members: out is size() times in. `in` may be this
   * member's block of `out`. */
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out);
  /** The same with blocks of different length, in place: block i of `data` is offsets[i] to
   * offsets[i+1], and this rank's own is filled in. Short blocks of more than kMostDirect members
   * travel by doubling, as in agree(): the same bytes in about log2(H) messages. Another `own`
   * block is copied to its place. */
  void all_gather_v(std::byte* data, std::span<const std::int64_t> offsets,
                    const std::byte* own = nullptr);
  /** Whether that goes ahead of an agreement if all blocks have `bytes` bytes together. */
  bool gathers_ahead(std::int64_t bytes) const;
  /** Then: nothing is written to `data` before `agree` has returned. */
  void gather_ahead(std::byte* data, std::span<const std::int64_t> offsets, const std::byte* own,
                    const Agree& agree);
  /** Block j of `in` goes to member j, and member i's block for this one to block i of `out`; this
   * one's own is copied. Offsets as above; `out` fits what the members send. */
  void all_to_all_v(std::byte* in, std::span<const std::int64_t> in_offsets, std::byte* out,
                    std::span<const std::int64_t> out_offsets);
  /** From member `root` to all, in place; there from `from`, which may be another place than
   * `data`. Nothing is written to `data` before `agree` has returned. */
  void broadcast(std::byte* data, std::int64_t bytes, int root, const std::byte* from,
                 const Agree& agree);
  void broadcast(std::byte* data, std::int64_t bytes, int root) {
    broadcast(data, bytes, root, data, {});
  }

  /** Whether a broadcast of `bytes` bytes goes one way: nobody waits for an answer, or for those
   * who only get it, unless they pass it on, and whoever makes another call finds that out by
   * `notes`. */
  bool goes_one_way(std::int64_t bytes) const;
  /** The same of a reduce: each of the others sends what it brings to the root, and goes on. */
  bool reduces_one_way(std::int64_t bytes) const;
  enum class Direction : std::uint8_t { from_root, to_root };
  /** What all know of a call that goes one way. */
  struct OneWay {
    int root;
    std::int64_t bytes;
    std::int64_t in_a_row = 0;  ///< broadcasts right before it that went one way from the same root
    Direction direction = Direction::from_root;
  };
  /** Of whom this member gets one, as a rank. Up to three members get it of the root, more through
   * a binomial tree. Three pass it on, too, from the third in a row: a root that sends one after
   * the other waits for nothing but the calls of its kernel. Data that follow a note go the same
   * way: from the root, or longer ones from each member to the next one, as far as all have
   * connections. */
  int giver(const OneWay& call) const { return member(static_cast<std::size_t>(giver_of(call))); }
  /** By the root, who sends for it, or who brings something to it, after notes.begin(); has been
   * `away` from collectives before. Waits until `data` has left. */
  void send_one_way(const OneWay& call, Notes& notes, std::span<const std::byte> data,
                    std::chrono::microseconds away);
  /** By the others: waits for the note of giver(call), and passes it on. Throws OneSidedMismatch
   * before anything is written, or later where others pass on data, of which another root's may
   * come before its note. How long the root had been away. */
  std::chrono::microseconds take_one_way(const OneWay& call, Notes& notes,
                                         std::span<std::byte> data);
  /** Whose note has come last, and how long that one had been away. */
  struct Latest {
    int rank;
    std::chrono::microseconds away;
  };
  /** By the root of a reduce, after notes.begin() with all others: waits for what they bring, and
   * has `merge` add it to `own`. Throws OneSidedMismatch before that. */
  Latest collect_one_way(const OneWay& call, Notes& notes, std::span<const std::byte> own,
                         const Merge& merge);
  /** What a host does with `count` elements from `begin` on, before they travel and when they have
   * come; see all_reduce(). */
  struct Around {
    using Action = std::function<void(std::int64_t begin, std::int64_t count)>;
    Action before = [](std::int64_t, std::int64_t) {};
    Action after = [](std::int64_t, std::int64_t) {};
    Agree agree{};  ///< if the members still have to: first, or behind a window that goes_ahead()
    /** Where before() puts what is to be added, if not in place: of the first segment, and of all,
     * of which those after it are looked at. Only where adds_from_elsewhere(). */
    const void* first = nullptr;
    const void* others = nullptr;
  };
  /** In place over `count` elements. A long message goes in segments: around.before() makes one
   * ready while those before it travel, and around.after() takes its results. Nothing is written
   * before around.agree() has returned. */
  void all_reduce(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine,
                  const Around& around);
  void all_reduce(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine) {
    all_reduce(data, count, dtype, combine, {});
  }
  /** The same, but in the order of the hosts however long it is, and however many they are. */
  void all_reduce_in_order(void* data, std::int64_t count, DType dtype,
                           const cpu::Combine& combine);
  /** By who is no member: makes the calls of `around` in the order in which members make them. */
  void accompany(std::int64_t count, DType dtype, const Around& around) const;
  /** Of `count` elements, which one of these calls is for, of `total` in all: so many are of each
   * lane, one behind the other; of the last ones fewer, or none. */
  std::int64_t share_of_lane(std::int64_t count, std::int64_t total, DType dtype) const;
  /** The elements of the first of these calls. */
  std::int64_t first_segment(std::int64_t count, DType dtype) const;
  /** In place: afterwards block position() of `data` (element offsets) holds the reduction of
   * that block; the other blocks are undefined. */
  void reduce_scatter_v(void* data, std::span<const std::int64_t> offsets, DType dtype,
                        const cpu::Combine& combine);
  /** To `data` at member `root`; elsewhere that is undefined afterwards. What this member brings
   * lies there, or `from` elsewhere. */
  void reduce(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine, int root,
              const void* from = nullptr);

 private:
  /** Who gets the results of a reduction, besides the owners of the shards. */
  static constexpr int kNobody = -1;
  static constexpr int kEverybody = -2;
  /** A round between hosts takes as long as this many bytes: more to save one do not pay. */
  static constexpr std::int64_t kSmall = std::int64_t{16} * 1024;
  /** The same on a fast wire, see Wire::is_fast(), of what goes through the first member. */
  static constexpr std::int64_t kSmallFast = std::int64_t{96} * 1024;
  /** Of what follows notes from one member to all others, or to one from all on a fast wire, all
   * together. More is worth two rounds, in which every two talk to each other, over MPI; on a fast
   * wire it goes from member to member. */
  static constexpr std::int64_t kSmallNoted = std::int64_t{128} * 1024;
  /** From three to so many members agree through the first of them, or tell each other by headers
   * that go before their windows. */
  static constexpr int kCentred = Wire::kMostWithoutAhead;
  /** So much of a broadcast from member to member goes ahead of its agreement: in pieces that are
   * all posted at once. */
  static constexpr std::int64_t kMostAhead = Wire::kLongPiece;
  /** Windows under way between members that stand in groups: more messages than Wire::kUnderWay. */
  static constexpr std::int64_t kGroupedUnderWay = 4;
  /** Windows under way between two that give each other all: one is added while another travels. */
  static constexpr std::int64_t kPairUnderWay = 2;

  /** Goes before what a message of agree() carries. */
  struct Header {
    std::uint64_t hash;
    std::uint64_t waited;  ///< for `late`, in nanoseconds
    std::int64_t carried;  ///< bytes
    std::int32_t late;
    std::uint32_t agreed;  ///< whether all that the sender has heard of have this hash
    std::int64_t follows;  ///< bytes of the same call, as a message of their own
  };
  static_assert(sizeof(Header) <= kCacheLine);

  /** Makes the calls of an Around when segments begin and end. */
  struct SegmentCalls {
    const Segments& segments;
    const Around& around;
    std::int64_t width;  ///< of an element, in bytes

    void before(std::int64_t window) const {
      if (segments.is_first(window)) call(around.before, segments.segment_of(window));
    }
    void after(std::int64_t window) const {
      if (segments.is_last(window)) call(around.after, segments.segment_of(window));
    }
    void call(const Around::Action& action, std::int64_t segment) const {
      const std::int64_t begin = segments.begin(segment) / width;
      action(begin, segments.begin(segment + 1) / width - begin);
    }
  };

  /** The messages of a call that go ahead of its agreement: at most one from each member to each
   * other one, of at most a window: behind headers, or by themselves. While it exists, settle()
   * knows of the latter. */
  class Ahead;

  /** The way of notes, and of the data behind them: all from the root, through a binomial tree,
   * from each member to the next one; or notes from the root, and shares of the data, which the
   * others pass on to each other; or all to the root. */
  enum class Route { from_root, tree, row, shares, to_root };
  Route route_of(const OneWay& call) const;
  /** The position of whom this member gets one from. */
  int giver_of(const OneWay& call) const;
  /** Calls taker(position) for those to whom this member gives notes. */
  template <class Taker>
  void for_each_taker(const OneWay& call, const Taker& taker) const;
  void pass_note(const OneWay& call, Batch& batch, std::span<const std::byte> note);
  /** By who has waited for `note`, with those of later calls that have come along. */
  void pass_notes(const OneWay& call, Batch& batch, Notes& notes, std::span<const std::byte> note);
  /** A note, and the data that follow it on the same way. */
  void send_together(const OneWay& call, std::span<const std::byte> note,
                     std::span<const std::byte> data);
  void take_together(const OneWay& call, std::span<const std::byte> note,
                     std::span<std::byte> data);
  /** Whether all of a broadcast comes from the root itself. */
  bool goes_straight(std::int64_t bytes) const {
    return size() <= 2 || bytes * (size() - 1) <= kSmall;
  }
  bool stand_in_groups() const { return size() > kMostDirect; }
  /** Whether a message is so short that everybody gets all of it at once. */
  bool goes_whole(std::int64_t bytes) const { return bytes * (size() - 1) <= kSmall; }
  int position_of(int rank) const;
  int peer(int distance) const { return (position_ + distance) % size(); }
  void send(Batch& batch, std::span<const std::byte> part, int position);
  void recv(Batch& batch, std::span<std::byte> part, int position);
  void pass_on(Batch& batch, std::span<std::byte> part, int source, int target);
  void send(Ahead& ahead, std::span<const std::byte> part, int position);
  /** `part` begins a window: who does not agree may send more than is wanted. */
  void recv(Ahead& ahead, std::span<std::byte> part, int position);
  /** Whether the root of a reduce of `bytes` bytes adds up nothing. */
  bool spares_root(std::int64_t bytes) const;
  /** Whether nobody on the hosts has to do with a reduce between its windows, so that a window is
   * one message. */
  bool reduces_in_long_windows(std::int64_t bytes) const {
    return bytes > size() * Wire::kPiece && wire_.passes_on(members_);
  }
  /** Offsets in bytes of shards of equal length, in whole cache lines, one for each member but
   * `without`, whose shard is empty. */
  RecycledVector<std::int64_t> even_offsets(std::int64_t bytes, int without) const;
  /** In bytes, for messages of agree(). */
  std::int64_t most_carried() const;
  bool is_centred() const { return !Wire::has_ahead(size()); }
  /** Messages of agree() lie in places of this size. */
  std::int64_t place_bytes() const;
  std::byte* place(int number) const { return places_.get() + number * place_bytes(); }
  bool ask_centre(Header header, const Brought& brought, std::span<std::byte> out);
  bool answer_all(Header header, const Brought& brought, std::span<std::byte> out,
                  const Merge& merge);
  bool swap(Header header, const Brought& brought, const Merge& merge);
  std::int64_t with_header(std::int64_t carried) const;
  bool disseminate(Header header, const Brought& brought, const Merge& merge);
  bool tell_all(Header header, Ahead& ahead);
  void tell_others_of_mismatch(Header header);
  void drop_what_follows(const Header& own, const Ahead* ahead);
  Header header_of(int member) const;
  void gather_doubling(std::byte* data, std::span<const std::int64_t> offsets);
  void combine_here(std::byte* to, const std::byte* own, const std::byte* others,
                    std::int64_t stride, std::int64_t bytes, DType dtype,
                    const cpu::Combine& combine);
  void reduce_whole(std::byte* data, std::int64_t bytes, DType dtype, const cpu::Combine& combine);
  /** Whether an all_reduce's windows are longer than a piece: not where one would be all of a
   * shard, nor among so many members, with others on their hosts, that windows which go ahead are
   * messages by themselves. */
  bool has_long_windows(std::int64_t bytes) const {
    return bytes > size() * Wire::kPiece && (alone_ ? !stand_in_groups() : is_centred());
  }
  /** Whether two members give each other all of an all_reduce: see reduce_pair(). Not if they are
   * alone, who take longer for it. */
  bool is_pair(std::int64_t bytes) const {
    return size() == 2 && !alone_ && bytes > 4 * Wire::kPiece;
  }
  Segments pair_segments(std::int64_t bytes) const;
  void reduce_pair(std::byte* data, const Segments& segments, DType dtype,
                   const cpu::Combine& combine, const SegmentCalls& calls);
  /** Windows of the same size for all dtypes: whole elements, whole cache lines. */
  static std::int64_t window_for(int members);
  Segments direct_segments(std::int64_t bytes) const;
  static Segments grouped_segments(std::int64_t bytes, int hosts);
  Segments segments_of(std::int64_t bytes) const;
  std::int64_t posted_behind(std::int64_t bytes, std::int64_t window) const;
  /** Those who own shards add them up; part(owner, number) is a window of one, own(owner, number)
   * what this member has to add to it. Calls before(number) ahead of a window's exchange, agree,
   * if there is one, behind the first, and after(number) when a window's results are there. */
  template <class Part, class Own, class Before, class After>
  void reduce_shards(const Part& part, const Own& own, const WindowPlan& windows, DType dtype,
                     const cpu::Combine& combine, int receivers, const Agree& agree,
                     const Before& before, const After& after);
  void reduce_shards(const Shards& shards, DType dtype, const cpu::Combine& combine, int receivers);
  void reduce_segments(std::byte* data, const Segments& segments, DType dtype,
                       const cpu::Combine& combine, const SegmentCalls& calls, const Agree& agree);
  void reduce_grouped(std::byte* data, const Segments& segments, DType dtype,
                      const cpu::Combine& combine, int receivers, const SegmentCalls& calls);
  /** Whether a long broadcast goes from member to member. */
  bool is_chain() const;
  void broadcast_chain(std::byte* data, std::int64_t bytes, int root, const std::byte* from,
                       const Agree& agree);
  void broadcast_shares(std::byte* data, std::int64_t bytes, int root, const std::byte* from,
                        const Agree& agree, Wire::Traffic traffic);
  void broadcast_grouped(std::byte* data, std::int64_t bytes, int root);

  Wire& wire_;
  std::vector<int> members_;
  bool alone_;
  Lane lane_;
  int position_ = 0;
  int last_ = 0;
  Ahead* ahead_ = nullptr;
  std::shared_ptr<std::byte[]> places_;  // made by the first agree()
};

}  // namespace tutti
