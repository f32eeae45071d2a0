// How the ranks of a host fail together: one report of what happened, which all of them throw.
#include <algorithm>
#include <mutex>

#include "comm/shm/host.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {

const FailureReport& Host::failure() const {
  const std::int32_t author = control().header().failed_by.load(std::memory_order_acquire) - 1;
  return control().slot(author).failure;
}

void Host::throw_failure() const {
  part_with_others();
  const FailureReport& report = failure();
  if (report.kind == FailureReport::Kind::peer_lost && on_loss_) on_loss_();
  report.raise();
}

bool Host::names_this_rank() const {
  const auto lost = failure().rank_list();
  return std::find(lost.begin(), lost.end(), name_of(rank_)) != lost.end();
}

void Host::lose(const std::vector<int>& ranks, const std::string& reason) {
  fail_lost(names_of(ranks), reason);
  throw_failure();  // what all ranks throw, which may be an earlier failure
}

Finder Host::show_lost(std::span<const int> names, std::string_view reason) noexcept {
  if (on_loss_) on_loss_();
  return show([&](FailureReport& report) { report.set_lost(names, reason); });
}

Finder Host::show_mismatch(std::string_view text) noexcept {
  return show([&](FailureReport& report) { report.set_mismatch(text); });
}

template <class Write>
Finder Host::show(const Write& write) noexcept {
  auto& failed_by = control().header().failed_by;
  const std::lock_guard lock(failing_);
  if (!has_failed()) {
    write(own().failure);
    std::int32_t nobody = 0;
    failed_by.compare_exchange_strong(nobody, rank_ + 1);
    // Before anything that the caller writes from now on: see check_reads().
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake_all();
  }
  return failed_by.load(std::memory_order_relaxed) == rank_ + 1 ? Finder::self : Finder::neighbour;
}

}  // namespace tutti::shm
