// What the ranks of one host do together through shared memory, without asking whether they agree.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/shm/choices.hpp"
#include "comm/shm/group/local_group.hpp"
#include "comm/shm/memory/single_copy.hpp"
#include "comm/shm/memory/symmetric.hpp"
#include "comm/shm/task.hpp"
#include "tutti/device.hpp"
#include "tutti/sparse.hpp"

namespace tutti::shm {

/**
 * Tasks among the ranks of a host, on which transports stand: they compare what the ranks ask for,
 * and pass on what each of them is to do. Whatever the way, element i of a reduction is combined in
 * the order of the ranks, so all ways give the same bits:
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
class Local {
 public:
  /** Meets the other holders of `id`. `names` are the ranks as the user knows them: for a whole
   * communicator 0, 1, ... See shm::meet() for the errors. */
  Local(const UniqueId& id, int rank, std::vector<int> names, std::chrono::milliseconds timeout,
        std::optional<Participants> participants = {});

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  LocalGroup& group() { return group_; }
  const LocalGroup& group() const { return group_; }

  /**
   * The first half of a task: comes to it with `stamp` and waits for all ranks. Whether all came
   * with the same; if so, their tasks match, or the caller has made sure of it otherwise. Nothing
   * was written so far but memory of this object. A stamp says that a call begins: those who come
   * late to it are noted as such; without one, ranks meet inside a call.
   */
  bool meet(const Task& task, std::optional<std::uint32_t> stamp = {});
  /** The second half, if all match: moves the data. Throws if the others have given up on this rank
   * meanwhile. */
  void move(const Task& task);
  /** Both, for ranks that agree. */
  void run(const Task& task) {
    meet(task);
    move(task);
  }
  /** How often the ranks have met. */
  std::uint64_t meetings() const { return meetings_; }

  /** After a meeting: moves blocks of at most `longest` elements, through the staging memory: to[r]
   * goes to rank r, from[r] comes from it. */
  void exchange(std::span<const ConstView> to, std::span<const View> from, std::int64_t longest);
  /** After a meeting: `out` = what comes of all ranks, combined; to[r] goes to rank r. */
  void reduce_blocks(std::span<const ConstView> to, View out, std::int64_t longest,
                     const cpu::Combine& combine);

  /** Takes what each rank, in their order, has of the indices from `begin` to `end`. */
  using TakeSparse =
      std::function<void(std::int64_t begin, std::int64_t end, std::span<const SparseView> parts)>;
  /** After a meeting: calls `take` on every rank with the same stretches of the `count` indices,
   * one after the other, and all ranks' elements of each. */
  void merge_sparse(const SparseView& in, std::int64_t count, const TakeSparse& take);
  /** What a rank sends to the others of this host for merge_sparse(). */
  std::int64_t bytes_lent(const SparseView& in) const;

  /** After a meeting: see Transport::allocate. */
  Buffer allocate(std::int64_t bytes);

  /** From now on tasks go this way wherever they can. All ranks force the same; for tests. */
  void force(const Way& way) { choices_.force(way); }
  /** How the last task of more than a line went; for tests. */
  const Way& last_way() const { return last_way_; }
  /** Whether single copies are possible. Collective: after a first meeting, before which ranks do
   * not know of each other. */
  bool reaches_all() { return single_copy_.reaches_all(); }

 private:
  using Kind = Way::Kind;
  /** What the ranks found out when they met, for the task under way. */
  struct Met {
    bool line = false;          ///< contributions are in the arrivals
    bool early = false;         ///< the choice was made before the ranks met
    bool direct_in = false;     ///< inputs can be read in place
    bool direct_out = false;    ///< outputs can be written in place
    bool any_in_place = false;  ///< some rank's output overlaps its input
    bool reaches_all = false;   ///< all ranks can read all others' private memory
    Choices::Choice choice{Choices::kPlainShot};
    // Of trials: the time before the wait for the others, and when the rest began, less that time.
    std::chrono::steady_clock::duration spent{};
    std::chrono::steady_clock::time_point began{};

    const Way& way() const { return choice.way; }
    bool is(Kind kind) const { return choice.way.kind == kind; }
    bool is_trial() const { return choice.trial != Chooser::kSettled; }
    /** Whether the contributions have come with the ranks. */
    bool small() const { return line || is(Kind::one_shot); }
  };
  /** How a kind of task moves its data, by Way::Kind. */
  using Ways = std::array<void (Local::*)(const Task&), kWayKinds>;
  static const Ways& ways_of(TaskKind kind);

  Arrival& arrival_of(int peer) const { return group_.control().slot(peer).arrival(meetings_); }
  Staging& staging_of(int peer) const { return group_.control().staging(peer); }
  Request request_of(int peer) const;
  /** Comes with what is written, and waits for all ranks; whether they have the same stamp. */
  bool arrive(std::optional<std::uint32_t> stamp);
  /** Puts this rank's contribution where it comes along with the arrival. */
  void bring(const Task& task);
  Request describe(const Task& task);
  void examine(const Request& own);
  /** Decides on the way, now that it is known what is possible. */
  void decide(const Task& task);
  /** Reached by all ranks when they have read what they need of the others' memory. */
  void finish_reading();
  /** What the task cost is noted, if somebody wants to know. */
  void end();

  // Ways of tasks of which each rank takes some of the others' inputs.
  void reach(const Task& task);
  void relay(const Task& task);
  void pull(const Task& task);
  /** A rank's part in relay(). */
  struct Part {
    bool gives = true;
    bool takes = true;
    int source = Task::kAll;  ///< who alone gives
  };
  /** Sends pieces of at most `most` elements through the staging memory, some ahead of the others:
   * stage(begin, count, slot) puts a piece there, take(begin, count, slot) reads it when all who
   * give have. */
  template <class Stage, class Take>
  void relay(std::int64_t count, std::int64_t most, const Part& part, const Stage& stage,
             const Take& take);
  /** Exchanges blocks of at most `longest` elements of `width` bytes: block_to(r) goes to rank r;
   * take(begin, count) finds at inputs_ what came for this rank: of each block elements from
   * `begin` on, up to `count` of them. */
  template <class BlockTo, class Take>
  void relay_blocks(std::int64_t longest, std::int64_t width, const BlockTo& block_to,
                    const Take& take);

  // Ways of all_reduce, whose results travel as well.
  void reduce_lines(const Task& task);
  void reduce_in_place(const Task& task);
  void reduce_in_pieces(const Task& task);
  void reduce_copies(const Task& task);

  /** How many elements this rank takes of each, if they are combined. */
  std::int64_t own_count(const Task& task) const {
    return task.by_blocks() ? task.count_of(rank()) : task.count;
  }
  /** Where in everybody's input this rank takes from, in elements. */
  std::int64_t offset_in(const Task& task) const {
    return task.by_blocks() ? task.begin_of(rank()) : 0;
  }
  /** Where in `out` the elements of `giver` belong, if they are not combined. */
  View place_of(const Task& task, int giver) const;
  /** This rank takes of itself what it gives itself, if elements are not combined. */
  void take_own(const Task& task) const;
  /** Takes elements [begin, begin + count), which lie at inputs_ by now. */
  void take(const Task& task, std::int64_t begin, std::int64_t count, bool streamed);
  /** inputs_ = the start of everybody's input, moved by `offset` bytes, where it can be reached. */
  void find_inputs(const Task& task, std::int64_t offset);
  /** inputs_ = the start of everybody's staging memory of a piece, moved by `offset` bytes; this
   * rank's own part is taken from `own`. */
  void find_pieces(std::size_t slot, std::int64_t offset, const void* own);
  /** inputs_ = copies of elements [offset, offset + count) of everybody's input. */
  void pull_inputs(const Task& task, std::int64_t offset, std::int64_t count);
  /** Combines elements [offset, offset + task.count) of all inputs, piece by piece, into `out`. */
  void pull_and_combine(const Task& task, std::int64_t offset, View out, std::int64_t count);
  /** Reads from the private memory of `peer`; throws PeerLost if it is gone. */
  void pull_from(int peer, void* to, std::uint64_t address, std::int64_t bytes);

  LocalGroup group_;
  SymmetricMemory symmetric_;
  SingleCopy single_copy_;
  Choices choices_;
  Met met_;
  Way last_way_;
  std::uint64_t meetings_ = 0;
  std::uint32_t pieces_ = 0;         // that went through the staging memory so far
  std::vector<const void*> inputs_;  // one a rank: made once, not for each task
  std::vector<void*> outputs_;
  std::vector<std::byte> pulled_;
  std::vector<SparseView> sparse_parts_;  // of merge_sparse()
};

}  // namespace tutti::shm
