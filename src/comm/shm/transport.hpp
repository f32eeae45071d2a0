// The transport among the ranks of one host: shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shm/choices.hpp"
#include "comm/shm/host.hpp"
#include "comm/shm/single_copy.hpp"
#include "comm/shm/symmetric.hpp"
#include "comm/sparse/packet.hpp"
#include "device/cpu/kernels.hpp"
#include "tutti/transport.hpp"

namespace tutti::shm {

/**
 * Collectives through shared memory. Whatever the way, element i of a reduction is combined in the
 * order of the ranks, so all ways give the same bits:
 *
 * - one line, up to 56 bytes: the contribution comes in the cache line that shows the rank's
 *   arrival.
 * - one shot, up to 64 KiB: every rank copies its input into its staging memory, arrives, and takes
 *   what it needs from everybody's staging memory. One synchronisation. Up to 1 KiB nothing else
 *   comes into question, and the ranks do not tell each other where their arguments lie.
 * - direct, if all ranks pass memory of one symmetric allocation: after arriving, ranks read the
 *   others' inputs, and in all_reduce write the others' outputs, in place. Two synchronisations.
 * - single copy: the ranks read each other's private memory through the kernel, where it allows
 *   that. In all_reduce each reads what it reduces, and then the others' results.
 * - staged: pieces go through the staging memory, of which there are three slots: while one is
 *   filled the next is read.
 *
 * Which of the ways that are possible is taken, and whether memory that others will read is
 * written past the caches, is found out while running (Choices).
 *
 * Staging memory is used again only after a later synchronisation has shown that all ranks are
 * done with it; so ways that use it need none at their end for its sake.
 */
class ShmTransport final : public Transport {
 public:
  /** Meets the other holders of `id`. `names` are the ranks as the user knows them: for a whole
   * communicator 0, 1, ... See meet() for the errors. */
  ShmTransport(const UniqueId& id, int rank, std::vector<int> names,
               std::chrono::milliseconds timeout, std::optional<Participants> participants = {});

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.rank(); }
  int local_size() const override { return host_.size(); }
  std::string describe() const override;

  void run(const Call& call) override;
  Buffer allocate(std::int64_t bytes) override;
  std::unique_ptr<Transport> split(int color, int key) override;
  void pulse(std::chrono::milliseconds waited) override;
  void abort(std::string_view reason) noexcept override;

  /** From now on collectives go this way wherever they can. All ranks force the same; for tests. */
  void force(const Way& way) { choices_.force(way); }
  /** How the last collective of more than a line went; for tests. */
  const Way& last_way() const { return last_way_; }
  /** Whether single copies are possible. Collective: after a first collective, before which ranks
   * do not know of each other. */
  bool reaches_all() { return single_copy_.reaches_all(); }

  // For a transport that joins several hosts.

  Host& host() { return host_; }
  /** A reduce() with a combination that is not this host's alone. */
  void reduce(const Call& call, const cpu::Combine& combine);
  /** Arrives with `signature` and waits for all ranks; whether they all came with the same. */
  bool compare(const Signature& signature);
  /** What the ranks came with to the last compare(), named as the user knows them. */
  std::vector<RankSignature> compared() const;
  /** Moves blocks of at most `longest` elements between the ranks, who have met for it: to[r] goes
   * to rank r, from[r] comes from it. */
  void exchange(std::span<const ConstView> to, std::span<const View> from, std::int64_t longest);
  /** Takes what each rank, in their order, has of the indices from `begin` to `end`. */
  using TakeSparse =
      std::function<void(std::int64_t begin, std::int64_t end, std::span<const SparseView> parts)>;
  /** Calls `take` on every rank with the same stretches of the `count` indices, one after the
   * other, and all ranks' elements of each. */
  void merge_sparse(const SparseView& in, std::int64_t count, const TakeSparse& take);
  /** What a rank sends to the others of this host for merge_sparse(). */
  std::int64_t bytes_lent(const SparseView& in) const;

 private:
  /** A collective under way. */
  struct Move {
    Operation operation = Operation::barrier;
    std::int64_t bytes = 0;     ///< of one contribution; the same on all ranks
    bool line = false;          ///< contributions are in the arrivals
    bool brief = false;         ///< goes by one shot, without a choice
    bool direct_in = false;     ///< inputs can be read in place
    bool direct_out = false;    ///< outputs can be written in place
    bool any_in_place = false;  ///< some rank's output overlaps its input
    bool reaches_all = false;   ///< all ranks can read all others' private memory
    bool early = false;         ///< the choice was made before the ranks met
    Choices::Choice choice{};
    // Of trials: the time before the wait for the others, and when the rest began, less that time.
    std::chrono::steady_clock::duration spent{};
    std::chrono::steady_clock::time_point began{};

    bool is(Way::Kind kind) const { return choice.way.kind == kind; }
    bool small() const { return line || is(Way::Kind::one_shot); }
  };
  using Kind = Way::Kind;

  /** Arrives with a call, waits for all ranks, compares. Throws MismatchError. `bytes`: of the
   * largest contribution. */
  Move begin(const Signature& signature, ConstView in, View out, std::int64_t bytes);
  /** Decides on the way, now that the op knows whether it can go the direct one. */
  void decide(Move& move, bool direct);
  /** Reached by all ranks when they have read what they need of the others' memory. */
  void finish_reading();
  /** Ends a call: what it cost is noted, if somebody wants to know. Throws if the others have given
   * up on this rank meanwhile. */
  void end(const Move& move);
  /** begin() of a call without buffers. */
  void begin_checked(const Call& call) { begin(Signature::of(call), {}, {}, 0); }

  Arrival& arrival_of(int peer) const { return host_.control().slot(peer).arrival(sequence_); }
  Request request_of(int peer) const;
  const Signature& signature_of(int peer) const {
    return host_.control().slot(peer).signatures[sequence_ & 1U];
  }
  /** Takes up the next number and lays this rank's signature out for it; its hash. */
  std::uint32_t prepare(Signature signature);
  /** Arrives, with the hash of the signature, and waits for all ranks. */
  void meet_all(std::uint32_t hash);
  /** The whole of begin() for a message that comes with the arrival: in its line, or staged. */
  void meet_at_once(const Signature& signature, ConstView in, bool line);
  bool signatures_match() const;
  void examine(Move& move, const Request& own);
  /** Throws MismatchError on this rank; the others find the same. */
  [[noreturn]] void mismatch();

  /** What `peer` contributes, in a small call. */
  const std::byte* contribution_of(const Move& move, int peer) const;
  /** Where the input, or the output, of `peer` begins, in a direct call. */
  const std::byte* input_of(int peer, ConstView own) const;
  std::byte* output_of(int peer, View own) const;
  /** The start of everybody's input, moved by `offset` bytes, in a small or direct call. Valid
   * until the next such call. */
  std::span<const void* const> inputs(const Move& move, ConstView own, std::int64_t offset);
  /** The start of everybody's staging memory of a piece, moved by `offset` bytes; this rank's own
   * part is taken from `own`. Likewise. */
  std::span<const void* const> pieces(std::size_t slot, std::int64_t offset, const void* own);
  /** Reads from the private memory of `peer`; throws PeerLost if it is gone. */
  void pull(int peer, void* to, std::uint64_t address, std::int64_t bytes);

  /** Reduces contributions that came in lines. */
  void reduce_lines(View out, const cpu::Combine& combine);
  void direct_all_reduce(const Move& move, ConstView in, View out, const cpu::Combine& combine);
  void staged_all_reduce(const Move& move, ConstView in, View out, const cpu::Combine& combine);
  void copied_all_reduce(const Move& move, ConstView in, View out, const cpu::Combine& combine);
  void all_reduce(const Call& call);
  void reduce_scatter(const Call& call);
  void broadcast(const Call& call);
  void gather(const Call& call, std::span<const std::int64_t> counts);
  void all_to_all(const Call& call);
  void exchange(const Call& call);
  void reduce_scatter_v(const Call& call);
  void scan(const Call& call);
  void sparse_all_reduce(const Call& call);
  void barrier(const Call& call);
  void send(const Call& call);
  void recv(const Call& call);

  /** A rank's part in relay(). */
  struct Part {
    bool gives = true;
    bool takes = true;
    int source = kAll;  ///< who alone gives
    static constexpr int kAll = -1;
  };
  /** Sends pieces of at most `most` elements through the staging memory, some ahead of the others:
   * stage(begin, count, slot) puts a piece there, take(begin, count, slot) reads it when all who
   * give have. */
  template <class Stage, class Take>
  void relay(std::int64_t count, std::int64_t most, const Part& part, const Stage& stage,
             const Take& take);
  /** Reads elements [offset, offset + count) of everybody's input piece by piece; take(pieces,
   * begin, count) gets them in the order of the ranks. */
  template <class Take>
  void pull_pieces(const Move& move, ConstView in, std::int64_t offset, std::int64_t count,
                   const Take& take);
  /** Exchanges blocks of at most `longest` elements of `width` bytes: block_to(r) goes to rank r;
   * take(pieces, begin, count) receives what came for this rank: of each block elements from
   * `begin` on, up to `count` of them. */
  template <class BlockTo, class Take>
  void relay_blocks(std::int64_t longest, std::int64_t width, std::int64_t piece, bool streamed,
                    const BlockTo& block_to, const Take& take);
  /** Exchanges blocks of one length: block r of every rank's `in` goes to rank r, piece by piece;
   * take(pieces, begin, count) receives what came for this rank. */
  template <class Take>
  void exchange_blocks(const Move& move, ConstView in, const Take& take);

  Host host_;
  SymmetricMemory symmetric_;
  SingleCopy single_copy_;
  Choices choices_;
  Way last_way_;
  std::uint64_t sequence_ = 0;       // collectives so far
  std::uint32_t pieces_ = 0;         // that went through the staging memory so far
  std::uint32_t sent_ = 0;           // pieces that this rank has put into its mailbox
  std::vector<const void*> inputs_;  // one a rank: made once, not for each call
  std::vector<void*> outputs_;
  std::vector<std::int64_t> counts_;
  std::vector<std::byte> pulled_;
  // Of merge_sparse() and sparse_all_reduce(), kept so that these need no new memory.
  std::vector<SparseView> sparse_parts_;
  std::vector<ViewCursor> sparse_cursors_;
};

}  // namespace tutti::shm
