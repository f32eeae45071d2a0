// The transport among the ranks of one host: shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/shm/local.hpp"
#include "comm/shm/mail.hpp"
#include "comm/shm/signatures.hpp"
#include "comm/sparse/packet.hpp"
#include "comm/split.hpp"
#include "tutti/transport.hpp"

namespace tutti::shm {

/**
 * Compares what the ranks ask for, and gives them tasks (see Local). The comparison costs nothing
 * of its own: the ranks come to the task with a hash of their signatures.
 */
class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(std::unique_ptr<Local> local)
      : local_(std::move(local)),
        signatures_(*local_),
        mail_(local_->group()),
        messages_(local_->size()) {}
  /** Among the holders of `id`, who meet now: see Local. */
  ShmTransport(const UniqueId& id, int rank, std::vector<int> names,
               std::chrono::milliseconds timeout)
      : ShmTransport(std::make_unique<Local>(id, rank, std::move(names), timeout)) {}

  int rank() const override { return local_->rank(); }
  int size() const override { return local_->size(); }
  int local_rank() const override { return local_->rank(); }
  int local_size() const override { return local_->size(); }
  bool shares_host(int /*rank*/) const override { return true; }
  std::string describe() const override;
  std::chrono::milliseconds timeout() const override { return local_->group().timeout(); }
  record::Journal* journal() override { return &local_->group().journal(); }

  void run(const Call& call) override;
  Buffer allocate(std::int64_t bytes) override;
  std::unique_ptr<Transport> split(int color, int key) override;
  std::unique_ptr<Transport> group(std::span<const int> ranks) override;
  void pulse(std::chrono::milliseconds waited) override;
  void look_after_present() override;
  void lose_ended(const PeerLost& ended) override;
  void abort(std::string_view reason) noexcept override;

  /** For tests. */
  Local& local() { return *local_; }
  const Local& local() const { return *local_; }

 private:
  /** What a call means for the ranks of one host. */
  Task task_of(const Call& call) const;
  /** Meets for `task` with the signature of `call`. Throws MismatchError. */
  void agree(const Task& task, const Call& call);
  /** agree() on a call whose data do not move by a task. */
  void agree(const Call& call) { agree(Task::meet(), call); }
  /** Operations whose blocks are not all of one length: see Blocks. */
  void exchange_blocks(const Call& call);
  void reduce_scatter_v(const Call& call);
  void sparse_all_reduce(const Call& call);
  void message(const Call& call);
  std::unique_ptr<Transport> form_part(const PartPlan& plan);

  std::unique_ptr<Local> local_;
  Signatures signatures_;
  Mail mail_;
  MessageState messages_;
  std::uint64_t sequence_ = 0;              // collectives so far
  std::vector<ViewCursor> sparse_cursors_;  // kept, so that later sums need no new memory
};

}  // namespace tutti::shm
