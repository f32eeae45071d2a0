// The transport among several hosts: shared memory inside each, MPI between them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/notes.hpp"
#include "comm/hosts/group/one_way.hpp"
#include "comm/hosts/lane_trials.hpp"
#include "comm/hosts/sparse.hpp"
#include "comm/hosts/wire_mail.hpp"
#include "comm/layout.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/whole.hpp"
#include "comm/shm/local.hpp"
#include "comm/shm/local_notes.hpp"
#include "comm/shm/mail.hpp"
#include "comm/shm/signatures.hpp"
#include "comm/sparse/packet.hpp"
#include "comm/split.hpp"
#include "tutti/error.hpp"
#include "tutti/transport.hpp"

namespace tutti {

/**
 * A reduction is done inside each host first, then one rank a host (its agent: the lowest, or the
 * root) exchanges with the other hosts, then the result is spread inside the hosts; of a long one
 * on few hosts each rank may do so with a share (its lane). So the order of additions is rank order
 * inside a host, then the order of the hosts (see DirectReduction), or of groups of them where they
 * are many (see reduce_grouped()).
 *
 * The ranks of a host come to their first task of a call with a hash of its signature; then the
 * leaders compare theirs, with which short messages travel. Only if they differ are details
 * exchanged. Nobody writes an output before that: what leaders add up by then lies in temporary
 * memory; the others write what leaders give them later, or wait until these release them. A short
 * broadcast or reduce goes one way: each host compares its signature with the root's, or the root's
 * with all others (see Notes).
 *
 * An error on one side is told on the other: what shared memory finds out goes to the other hosts
 * over the channel, what the channel finds out goes to the ranks of this host.
 */
class HierarchicalTransport final : public Transport {
 public:
  /** Collective: blocks until the hosts are connected (see mpi::Channel::set_hosts()), at most to
   * the channel's deadline. `whole`: of which this is a part, if it is one; used meanwhile. Throws
   * PeerLost, which all ranks of this host and the others hear of. */
  HierarchicalTransport(std::unique_ptr<mpi::Channel> channel, Layout layout,
                        std::unique_ptr<shm::Local> local, mpi::Whole* whole = nullptr);
  HierarchicalTransport(const HierarchicalTransport&) = delete;
  HierarchicalTransport& operator=(const HierarchicalTransport&) = delete;
  /** Leaves: ranks that still wait for this one get PeerLost. Waits for nobody. */
  ~HierarchicalTransport() override {
    notes_.end(channel_->session()->may_call());
    mpi::Channel::leave(std::move(channel_));
  }

  /** From so many bytes on a sum may go in lanes, where hosts have some (see Wire::has_lanes()):
   * shorter ones take less time if leaders exchange them. Both ways give the same bits. */
  static constexpr std::int64_t fewest_in_lanes(int hosts, int ranks) {
    return hosts == 2 ? (std::int64_t{128} << 10) * ranks : (std::int64_t{4} << 20) * hosts;
  }

  int rank() const override { return channel_->rank(); }
  int size() const override { return channel_->size(); }
  int local_rank() const override { return local_->rank(); }
  int local_size() const override { return local_->size(); }
  bool shares_host(int rank) const override { return layout_.host_of(rank) == host(); }
  const shm::Local& local() const { return *local_; }
  /** Null where there are no lanes: the same on all ranks. */
  LaneTrials* lane_trials() { return lane_ ? &lane_->trials : nullptr; }
  std::string describe() const override;
  std::chrono::milliseconds timeout() const override { return channel_->timeout(); }
  record::Journal* journal() override { return &local_->group().journal(); }
  bool any_thread() const override;
  std::int64_t bytes_between() const override;

  void run(const Call& call) override;
  Buffer allocate(std::int64_t bytes) override;
  std::unique_ptr<Transport> split(int color, int key) override;
  std::unique_ptr<Transport> group(std::span<const int> ranks) override;
  void pulse(std::chrono::milliseconds waited) override;
  void look_after_present() override;
  void lose_ended(const PeerLost& ended) override;
  void abort(std::string_view reason) noexcept override;

 private:
  int host() const { return layout_.host_of(rank()); }
  bool is_leader() const { return local_->rank() == 0; }
  std::vector<int> others() const;
  /** Whether what this rank brings to a reduction is what its host brings. */
  bool brings_all(const cpu::Combine& inside) const {
    return local_size() == 1 && inside.factor == 1 && inside.divisor == 1;
  }
  /** The lowest rank of each host, in the order of the hosts. */
  std::vector<int> leaders() const;
  /** The rank of each host that exchanges with other hosts where `root` does for its own: the
   * leaders of the others. In the order of the hosts. */
  std::vector<int> agents(int root) const;
  /** Where the hosts' blocks begin that lie one behind the other, and where the last one ends, if
   * rank r brings length_of(r) to the block of its host. */
  std::vector<std::int64_t> host_offsets(
      const std::function<std::int64_t(int rank)>& length_of) const;
  /** The local rank of this host's agent. */
  int local_agent(int root) const;

  /** Runs what is a call, of which `witnesses` see a mismatch: all ranks, by agree(), or two, of a
   * message or a group. Tells both sides of its failure. */
  template <class Action>
  void guarded(const Action& action, Witnesses witnesses = Witnesses::all) {
    const mpi::Channel::CallScope call;
    try {
      action();
    } catch (...) {
      tell_failure(witnesses);
      throw;
    }
  }
  /** In a handler: the ranks of this host and those of the others learn of the failure. */
  void tell_failure(Witnesses witnesses) noexcept;
  void tell(const PeerLost& error) noexcept;
  void tell(const MismatchError& error, Witnesses witnesses) noexcept;
  /** Comes to `task`, the first of a call, with the call's signature. Throws MismatchError on all
   * ranks if those of this host differ. */
  void meet(const Call& call, const shm::Task& task) {
    sign(call, {});
    come(task);
  }
  /** The parts of it: the call begins, in which `givers` send notes (throws PeerLost, if a host was
   * found out of reach in another communicator and still is), ... */
  void sign(const Call& call, std::span<const int> givers);
  /** ... and the ranks of this host compare. */
  void come(const shm::Task& task);
  /** What a note carries: from the root or the leader to the others of its host, in a note, too. */
  void pass_note(const Call& call, const OneWayCall& between);
  /** In a wait that lasts: whether another rank makes another call. Throws, and tells the others.
   */
  void look_at_notes();
  bool goes_one_way(const Signature& signature) const {
    const std::int64_t bytes = signature.count * size_of(signature.dtype);
    return (signature.operation == Operation::broadcast && broadcasts_one_way(leaders_, bytes)) ||
           (signature.operation == Operation::reduce && reduces_one_way(leaders_, bytes));
  }
  bool has_one_way(std::span<const RankSignature> requests) const {
    return std::any_of(requests.begin(), requests.end(),
                       [this](const RankSignature& one) { return goes_one_way(one.signature); });
  }
  /** After meet(), by all ranks of a host: its leader compares with the others, and brings and gets
   * what goes along, or has sent what is `ahead` (see GroupAgreement::agree()). Throws
   * MismatchError on leaders, and the other ranks at their next wait. */
  void compare_hosts(const GroupAgreement::Brought& brought, View out,
                     const HostGroup::Merge& merge, Ahead* ahead = nullptr);
  void compare_hosts(Ahead* ahead = nullptr) { compare_hosts({}, {}, {}, ahead); }
  /** For a call of whose messages some go ahead of it. */
  Agree comparison_of_hosts() {
    return [this](Ahead* ahead) { compare_hosts(ahead); };
  }
  /** The ranks of this host wait until the leader has compared. */
  void release();
  /** At the first wait for the leader after a comparison: for which host it has waited. */
  void learn_delay();
  /** Blocks until all ranks have come with `call`. Throws MismatchError on all otherwise. */
  void agree(const Call& call);
  /** What all ranks came with, those of this host with `here`; for leaders, after a disagreement,
   * ahead of which this one has sent what is `ahead`, if anything. */
  std::string collect_mismatch(std::span<const RankSignature> here, Ahead* ahead = nullptr);
  /** Whether `ok` holds at the leaders of all hosts; all ranks call it. */
  bool all_hosts(bool ok);

  void all_reduce(const Call& call);
  /** `ahead`: a first window goes ahead of the comparison; only where all_reduce_.goes_ahead(). */
  void all_reduce_by_leaders(const Call& call, bool ahead);
  /** Whether each rank of a host can exchange a share of an all_reduce itself, with the ranks of
   * the same number on the other hosts, over connections of their own: the same on all ranks. */
  bool can_go_in_lanes(std::int64_t bytes) const {
    return lane_ && bytes >= fewest_in_lanes(layout_.host_count(), size());
  }
  /** In lanes or by the leaders: both are tried, and lanes are kept where they take less time on
   * all hosts. */
  void all_reduce_by_trial(const Call& call);
  void all_reduce_in_lanes(const Call& call);
  void reduce(const Call& call);
  void broadcast(const Call& call);
  /** Of each rank so many elements. */
  void gather(const Call& call, std::span<const std::int64_t> counts);
  /** Copies what lies host by host at `sorted` to `out` by rank: of each rank so many elements. */
  void put_by_rank(const std::byte* sorted, std::span<const std::int64_t> counts, View out) const;
  void reduce_scatter(const Call& call);
  void exchange_blocks(const Call& call);
  void scan(const Call& call);
  void sparse_all_reduce(const Call& call);
  void message(const Call& call);
  /** Blocks until `transfers`, some of which go to other hosts, are done. */
  void finish(Transfers& transfers);
  /** For a wait for whoever sends: throws PeerLost if all others have gone, or some have and it is
   * `overdue`. */
  void look_after_any(bool overdue);
  /** What is so short that it goes along with the signatures. */
  void carried_all_reduce(const Call& call);
  void carried_reduce(const Call& call);
  /** What is so short that nobody waits for an answer. */
  void one_way_broadcast(const Call& call);
  void one_way_reduce(const Call& call);
  /** What the ranks of a host bring goes to their leader in notes, and the result to the root. */
  void reduce_notes(const Call& call);
  /** By a leader: what its host brings goes to the root's host, or what all bring becomes `total`
   * there. Who came last on this host was away before. */
  void reduce_between(const Call& call, const ConstView& sums, void* total,
                      const record::Absence& absence);
  /** Whether such a broadcast goes to other hosts by the leader of its root's host, where that is
   * another rank: leaders have connections. */
  bool leaders_pass_on(std::int64_t bytes) const {
    return bytes <= shm::LocalNotes::kMost &&
           local_->group().control().header().leaders_are_connected;
  }
  /** By the root, or the leader of its host, and by a leader of another host: between hosts. The
   * root had been away before. */
  void send_one_way(const OneWayCall& between, const ConstView& data,
                    const record::Absence& absence);
  /** What `group`, the leaders or those who act for them, do for `call`. */
  OneWayCall one_way_of(const Call& call, const HostGroup& group) const {
    const int root = layout_.host_of(call.root);
    if (call.operation == Operation::broadcast) return {group, {root, call.out.bytes(), in_a_row_}};
    return {group, {root, call.in.bytes(), 0, OneWayCall::Direction::to_root}};
  }
  /** For what of this rank's wait the root had been away. */
  record::Absence take_one_way(const Call& call, const OneWayCall& between,
                               std::span<std::byte> data);
  /** From local rank `root` to all ranks of this host, which agree by now. */
  void spread(View data, int root = 0);
  std::unique_ptr<Transport> form_part(const PartPlan& plan, mpi::Whole::Makers makers);
  std::unique_ptr<Transport> connect_part(std::unique_ptr<mpi::Channel> channel, Layout layout,
                                          std::unique_ptr<shm::Local> local,
                                          const std::vector<int>& members,
                                          mpi::Whole::Makers makers);
  /** What follows the plan of a sparse_all_reduce: with packets, or with all elements. */
  void sparse_packets(View out, std::int64_t divisor, SparseStats& stats);
  void sparse_dense(View out, std::int64_t divisor, SparseStats& stats);
  /** Rank 0 says what was chosen, when it changes. */
  void log_plan(std::int64_t count, const SparsePlan& plan);

  /** This rank and those of the same number on the other hosts. */
  struct Lane {
    Lane(Wire& wire, const Layout& layout, int rank);
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;
    ~Lane() = default;

    HostGroup group;
    AllReduce all_reduce;
    LaneTrials trials;
  };

  std::unique_ptr<mpi::Channel> channel_;
  Layout layout_;
  std::unique_ptr<shm::Local> local_;
  shm::Signatures signatures_;
  shm::LocalNotes local_notes_;
  shm::Mail mail_;
  MessageState messages_;
  HostGroup leaders_;
  GroupAgreement agreement_;  // of the leaders
  AllReduce all_reduce_;      // of the leaders
  std::optional<Lane> lane_;  // if the hosts have several ranks, and as many each
  Notes notes_;
  SparseLeader sparse_;
  SparseAlgorithm logged_plan_ = SparseAlgorithm::none;
  std::uint64_t sequence_ = 0;
  Signature signature_;         // of the call under way
  Signature one_way_;           // of the last call before that went one way
  std::int64_t in_a_row_ = 0;   // broadcasts of one root: see OneWayCall::Terms
  bool delay_unknown_ = false;  // see learn_delay()
};

}  // namespace tutti
