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
  if (on_failure_) on_failure_();
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

void Host::fail_lost(std::span<const int> names, std::string_view reason) noexcept {
  if (on_loss_) on_loss_();
  fail([&](FailureReport& report) { report.set_lost(names, reason); });
}

void Host::fail_mismatch(std::string_view text) noexcept {
  fail([&](FailureReport& report) { report.set_mismatch(text); });
}

template <class Write>
void Host::fail(const Write& write) noexcept {
  publish(write);
  if (on_failure_) on_failure_();
}

template <class Write>
void Host::publish(const Write& write) noexcept {
  const std::lock_guard lock(failing_);
  if (has_failed()) return;
  write(own().failure);
  std::int32_t nobody = 0;
  control().header().failed_by.compare_exchange_strong(nobody, rank_ + 1);
  // Before anything that the caller writes from now on: see check_reads().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_all();
}

}  // namespace tutti::shm
