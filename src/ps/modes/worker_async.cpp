// A worker in async mode, and in half-async mode: what is pushed is merged, and sent by the batch.
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "ps/modes/patient_lock.hpp"
#include "ps/modes/send_queue.hpp"
#include "ps/modes/worker_mode.hpp"

namespace tutti::ps {
namespace {

std::deque<SendQueue> queues_to(const WorkerContext& context, const SendQueue::Limits& limits) {
  std::deque<SendQueue> queues;
  for (int server = 0; server < context.servers.count(); ++server)
    queues.emplace_back(context.servers, context.news, server, limits);
  return queues;
}

/** Pushes are merged into the open batch; batches leave by a queue for each server. */
class MergingWorker : public WorkerMode {
  using Lock = std::unique_lock<std::timed_mutex>;

 public:
  MergingWorker(const WorkerContext& context, const SendQueue::Limits& limits)
      : WorkerMode(context),
        servers_save_(context.servers_save),
        open_(context.servers),
        ended_(empty_batches(context.servers)),
        queues_(queues_to(context, limits)) {}

  void push(int table, const RowPush& push) final { open_.add_rows(table, push); }
  void push_dense(int parameter, std::span<const float> gradient) final {
    open_.add_dense(parameter, gradient);
  }
  DenseGradient gradient_memory(int parameter) final { return open_.gradient_memory(parameter); }

  void look_up(int table, std::span<const std::int64_t> ids, float* rows) final {
    move_on();
    WorkerMode::look_up(table, ids, rows);
  }
  void pull_dense(int parameter, float* value) final {
    move_on();
    WorkerMode::pull_dense(parameter, value);
  }

  void step() final {
    const Lock lock = lock_patiently<Lock>(stepping_);
    open_.take(ended_);
    ++steps_;
    servers_.age_prefetched();
    end_batch();
    saves_.go_on();
  }
  void flush() final {
    const Lock lock = lock_patiently<Lock>(stepping_);
    send_rest();
    wait_for_all();
    hear_end_rounds();
    servers_.renew_prefetched();
  }
  void finish(FirstError& errors) final {
    if (!open_.empty()) errors.or_keep([&] { step(); });
    const Lock lock = lock_patiently<Lock>(stepping_);
    errors.or_keep([&] { send_rest(); });
    for (SendQueue& queue : queues_) queue.finish(errors);
    hear_end_rounds(errors);
  }

 protected:
  /** A batch has ended: ended_, which may be empty. */
  virtual void end_batch() = 0;
  virtual void send_rest() {}

  void wait_for_all() {
    for_each_server(servers_, [&](int server) { queue(server).flush(); });
    check_all();
  }
  /** What servers have refused is told once nothing is waited for: an interruption would hide it.
   */
  void check_all() {
    for_each_server(servers_, [&](int server) { queue(server).check(); });
  }
  /** Servers wake up while their batches are being written. */
  void announce(const std::vector<Batch>& batches) const {
    for (int server = 0; server < servers_.count(); ++server) {
      if (!batches[static_cast<std::size_t>(server)].empty()) servers_.link(server).announce();
    }
  }
  /** Whether a server hears of a step in which it is pushed nothing: when a checkpoint is due. */
  bool hears_of_all(int server) const { return servers_save_ && server == 0; }
  SendQueue& queue(int server) { return queues_[static_cast<std::size_t>(server)]; }
  const std::vector<Batch>& ended() const { return ended_; }
  Batch& ended(int server) { return ended_[static_cast<std::size_t>(server)]; }
  std::int64_t steps() const { return steps_; }

 private:
  /** Who reads for long ends no batch that would take along those that wait. */
  void move_on() {
    const std::unique_lock lock(stepping_, std::try_to_lock);
    if (!lock) return;
    for (SendQueue& queue : queues_) queue.move_on();
  }

  const bool servers_save_;
  OpenBatch open_;
  std::timed_mutex stepping_;
  std::vector<Batch> ended_;
  std::deque<SendQueue> queues_;
  std::int64_t steps_ = 0;
};

class AsyncWorker final : public MergingWorker {
 public:
  AsyncWorker(const WorkerContext& context, const Async& mode)
      : MergingWorker(context, {mode.max_merge_var_num, mode.send_queue_size}),
        staleness_(mode.staleness) {}

 private:
  void end_batch() override {
    announce(ended());
    const auto has_news = [&](int server) {
      return staleness_ || hears_of_all(server) || !ended(server).empty();
    };
    for_each_server(
        servers_,
        [&](int server) {
          if (has_news(server)) queue(server).put(ended(server), steps());
        },
        [&](int server) {
          if (has_news(server)) queue(server).keep(ended(server), steps());
        });
    check_all();
    if (staleness_ && steps() - news_.slowest() >= *staleness_) {
      wait_for_all();
      tell_end_round({.kind = RequestKind::end_round,
                      .flags = kWaitForSlowest,
                      .count = *staleness_,
                      .round = steps()});
    }
    hear_end_rounds();
  }

  std::optional<std::int64_t> staleness_;
};

class HalfAsyncWorker final : public MergingWorker {
 public:
  HalfAsyncWorker(const WorkerContext& context, const HalfAsync& mode)
      : MergingWorker(context, {1, 1}),
        merge_batches_(mode.merge_batches),
        merged_(empty_batches(context.servers)) {}

 private:
  void end_batch() override {
    for (int server = 0; server < servers_.count(); ++server) {
      Batch& merged = merged_[static_cast<std::size_t>(server)];
      if (merged.empty()) {
        std::swap(merged, ended(server));
      } else if (!ended(server).empty()) {
        merged.add(ended(server));
        ++servers_.counters().merged;
      }
    }
    if (steps() % merge_batches_ != 0) return;
    send_rest();
    servers_.renew_prefetched();
  }

  void send_rest() override {
    announce(merged_);
    for_each_server(servers_, [&](int server) {  // those of others stay where they are otherwise
      Batch& merged = merged_[static_cast<std::size_t>(server)];
      if (hears_of_all(server) || !merged.empty()) queue(server).put(merged, steps());
    });
    wait_for_all();
  }

  std::int64_t merge_batches_;
  std::vector<Batch> merged_;
};

}  // namespace

std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Async& mode) {
  return std::make_unique<AsyncWorker>(context, mode);
}

std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const HalfAsync& mode) {
  return std::make_unique<HalfAsyncWorker>(context, mode);
}

}  // namespace tutti::ps
