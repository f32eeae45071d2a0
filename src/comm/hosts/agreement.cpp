// Whether all ranks ask for the same: compared once inside each host, and once between the hosts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.hpp"
#include "comm/hosts/group/movements.hpp"
#include "comm/hosts/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {

using shm::Task;

void HierarchicalTransport::sign(const Call& call, std::span<const int> givers) {
  channel_->ask_the_cut_off_again();
  if (goes_one_way(signature_)) one_way_ = signature_;
  signature_ = Signature::of(call);
  signature_.sequence = ++sequence_;
  signature_.before = one_way_.sequence == 0 ? 0 : one_way_.hash();
  notes_.begin(signature_, one_way_, givers);
  signatures_.begin(signature_);
}

void HierarchicalTransport::look_at_notes() {
  try {
    const std::vector<RankSignature> all = signatures_.differing();
    if (has_one_way(all)) throw OneSidedMismatch(describe_mismatch(all));  // others meet
    if (channel_->session()->may_call()) notes_.look();
  } catch (const OneSidedMismatch& error) {
    tell(error, Witnesses::two);
    throw;
  }
}

void HierarchicalTransport::come(const shm::Task& task) {
  // Who is alone on its host has nobody to meet.
  if (local_size() == 1 && task.kind == shm::TaskKind::meet) return local_->group().check_failure();
  if (signatures_.meet(task)) return;
  if (is_leader()) {
    const std::vector<RankSignature> all = signatures_.differing();
    if (has_one_way(all)) throw OneSidedMismatch(describe_mismatch(all));  // some may be gone
    agreement_.agree(0);
    throw MismatchError(collect_mismatch(all));
  }
  release();  // ends with the leader's failure
}

void HierarchicalTransport::compare_hosts(const GroupAgreement::Brought& brought, View out,
                                          const HostGroup::Merge& merge, Ahead* ahead) {
  delay_unknown_ = !is_leader();
  if (!is_leader()) return;
  const std::span target(static_cast<std::byte*>(out.data), static_cast<std::size_t>(out.bytes()));
  const std::uint64_t since = journal()->now();
  const bool same = agreement_.agree(signature_.hash(), brought, target, merge, ahead);
  local_->group().note_wait_between(sequence_, agreement_.last(), since);
  if (same) return;
  std::vector<RankSignature> all;
  for (const int rank : layout_.ranks_of(host())) all.push_back({rank, signature_});
  throw MismatchError(collect_mismatch(all, ahead));
}

void HierarchicalTransport::release() {
  if (local_size() > 1) local_->group().synchronise();
  local_->group().check_own_loss();
  learn_delay();
}

void HierarchicalTransport::spread(View data, int root) {
  if (local_size() == 1) return local_->group().check_own_loss();
  local_->run(Task::spread(data, data, root));
  learn_delay();
}

void HierarchicalTransport::learn_delay() {
  if (std::exchange(delay_unknown_, false)) local_->group().share_wait_between(sequence_, 0);
}

void HierarchicalTransport::agree(const Call& call) {
  meet(call, Task::meet());
  compare_hosts();
  release();
}

std::string HierarchicalTransport::collect_mismatch(std::span<const RankSignature> here,
                                                    Ahead* ahead) {
  agreement_.settle(ahead);
  struct Requests {
    RankSignature now;
    RankSignature before;  // the last that went one way
  };
  constexpr std::int64_t kEntry = sizeof(Requests);
  // Messages may still write it if somebody is lost.
  const Scratch memory(channel_->scratch(), kEntry * size());
  const std::vector<std::int64_t> offsets = host_offsets([](int) { return kEntry; });
  std::byte* const bytes = memory.data();
  std::vector<Requests> own;
  for (const RankSignature& one : here) own.push_back({one, {one.rank, one_way_}});
  copy_bytes(bytes + offsets[static_cast<std::size_t>(host())], own.data(),
             static_cast<std::int64_t>(own.size()) * kEntry);
  all_gather_v(leaders_, bytes, offsets);
  std::vector<Requests> all(static_cast<std::size_t>(size()));
  copy_bytes(all.data(), bytes, kEntry * size());
  std::sort(all.begin(), all.end(),
            [](const Requests& a, const Requests& b) { return a.now.rank < b.now.rank; });
  // Some may have gone on from a call that went one way, while others are still in another one; or
  // all have, and ask for the same now.
  std::uint64_t first = all.front().now.signature.sequence;
  for (const Requests& one : all) first = std::min(first, one.now.signature.sequence);
  std::vector<RankSignature> requests;
  for (const Requests& one : all) {
    const bool has_gone_on = one.before.signature.sequence == first;
    requests.push_back(has_gone_on ? one.before : one.now);
    requests.back().signature.before = 0;
  }
  const std::uint64_t hash = requests.front().signature.hash();
  const bool are_same = std::all_of(requests.begin(), requests.end(), [&](const auto& request) {
    return request.signature.hash() == hash;
  });
  for (std::size_t i = 0; are_same && i < all.size(); ++i) requests[i] = all[i].before;
  return describe_mismatch(requests);
}

bool HierarchicalTransport::all_hosts(bool ok) {
  std::uint8_t verdict = 0;
  if (is_leader()) {
    // Any difference is a no, and if all hosts say no, they differ by their numbers.
    const auto own = static_cast<std::uint64_t>(host());
    verdict = agreement_.agree(ok ? 1 : 2 + own) ? 1 : 0;
  }
  spread(View(&verdict, 1, DType::u8));
  return verdict != 0;
}

}  // namespace tutti
