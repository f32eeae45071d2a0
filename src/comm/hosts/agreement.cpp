// Whether all ranks ask for the same: compared once inside each host, and once between the hosts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.hpp"
#include "comm/hosts/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {

using shm::Task;

void HierarchicalTransport::meet(const Call& call, const shm::Task& task) {
  signature_ = Signature::of(call);
  signature_.sequence = ++sequence_;
  // Who is alone on its host has nobody to meet.
  if (local_size() == 1 && task.kind == shm::TaskKind::meet) return local_->group().check_failure();
  if (signatures_.meet(task, signature_)) return;
  if (is_leader()) {
    leaders_.agree(0);
    throw MismatchError(collect_mismatch(false));
  }
  release();  // ends with the leader's failure
}

void HierarchicalTransport::compare_hosts(const HostGroup::Brought& brought, View out,
                                          const HostGroup::Merge& merge) {
  delay_unknown_ = !is_leader();
  if (!is_leader()) return;
  const std::span target(static_cast<std::byte*>(out.data), static_cast<std::size_t>(out.bytes()));
  const std::uint64_t since = journal()->now();
  const bool same = leaders_.agree(signature_.hash(), brought, target, merge);
  local_->group().note_wait_between(leaders_.last(), since);
  if (!same) throw MismatchError(collect_mismatch(true));
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
  if (std::exchange(delay_unknown_, false)) local_->group().share_wait_between(0);
}

void HierarchicalTransport::agree(const Call& call) {
  meet(call, Task::meet());
  compare_hosts();
  release();
}

std::string HierarchicalTransport::collect_mismatch(bool same_here) {
  leaders_.settle();
  constexpr std::int64_t kEntry = sizeof(RankSignature);
  std::vector<RankSignature> all(static_cast<std::size_t>(size()));
  std::vector<std::int64_t> offsets{0};
  for (int host = 0; host < layout_.host_count(); ++host) {
    const auto ranks = static_cast<std::int64_t>(layout_.ranks_of(host).size());
    offsets.push_back(offsets.back() + ranks * kEntry);
  }
  auto* bytes = reinterpret_cast<std::byte*>(all.data());
  std::vector<RankSignature> own;
  if (same_here) {
    for (const int rank : layout_.ranks_of(host())) own.push_back({rank, signature_});
  } else {
    own = signatures_.all();
  }
  copy_bytes(bytes + offsets[static_cast<std::size_t>(host())], own.data(),
             static_cast<std::int64_t>(own.size()) * kEntry);
  leaders_.all_gather_v(bytes, offsets);
  std::sort(all.begin(), all.end(),
            [](const RankSignature& a, const RankSignature& b) { return a.rank < b.rank; });
  return describe_mismatch(all);
}

bool HierarchicalTransport::all_hosts(bool ok) {
  std::uint8_t verdict = 0;
  if (is_leader()) {
    // Any difference is a no, and if all hosts say no, they differ by their numbers.
    const auto own = static_cast<std::uint64_t>(host());
    verdict = leaders_.agree(ok ? 1 : 2 + own) ? 1 : 0;
  }
  spread(View(&verdict, 1, DType::u8));
  return verdict != 0;
}

}  // namespace tutti
