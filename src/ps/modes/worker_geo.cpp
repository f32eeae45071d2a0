// A worker in GEO mode: trains its own copy, and exchanges what it has learnt every so many steps.
#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "base/finally.hpp"
#include "base/refuse.hpp"
#include "ps/modes/geo_copy.hpp"
#include "ps/modes/patient_lock.hpp"
#include "ps/modes/worker_mode.hpp"

namespace tutti::ps {
namespace {

class GeoWorker final : public WorkerMode {
  using Lock = std::unique_lock<std::shared_timed_mutex>;
  using SharedLock = std::shared_lock<std::shared_timed_mutex>;

 public:
  GeoWorker(const WorkerContext& context, const Geo& mode)
      : WorkerMode(context),
        push_steps_(mode.push_steps),
        workers_(context.workers),
        open_(context.servers),
        ended_(empty_batches(context.servers)) {
    for (int server = 0; server < context.servers.count(); ++server)
      copies_.emplace_back(context.servers, server, context.seed);
  }

  void start() override {
    const Lock lock = lock_patiently<Lock>(mutex_);
    for (GeoCopy& copy : copies_) copy.start();
  }

  void look_up(int table, std::span<const std::int64_t> ids, float* rows) override {
    servers_.counters().rows_looked_up += std::ssize(ids);
    const IdSplit split(ids, servers_.table(table).split, servers_.count(), std::nullopt);
    const SharedLock lock = lock_patiently<SharedLock>(mutex_);
    for (int server = 0; server < servers_.count(); ++server)
      copy(server).look_up(table, split.share(server), rows);
  }
  void prefetch(int, std::span<const std::int64_t>) override {}
  void push(int table, const RowPush& push) override { open_.add_rows(table, push); }
  void push_dense(int parameter, std::span<const float> gradient) override {
    open_.add_dense(parameter, gradient);
  }
  DenseGradient gradient_memory(int parameter) override { return open_.gradient_memory(parameter); }
  void pull_dense(int parameter, float* value) override {
    const SharedLock lock = lock_patiently<SharedLock>(mutex_);
    for (const Servers::Piece& piece : servers_.pieces(parameter)) {
      const float* const from = copy(piece.server).dense().data() + piece.in_server;
      std::copy(from, from + piece.count, value + piece.in_parameter);
    }
  }

  DenseView view_dense(int) override {
    refuse("view_dense: in Geo mode each worker trains a copy of its own");
  }

  void step() override {
    const Lock lock = lock_patiently<Lock>(mutex_);
    train();
    if (++steps_ % push_steps_ == 0) exchange();
    saves_.go_on();
  }

  /** An exchange in which all of this worker's progress goes to the servers. */
  void flush() override {
    const Lock lock = lock_patiently<Lock>(mutex_);
    for_each_server(servers_, [&](int server) { copy(server).send_rest(steps_); });
    finish_exchange();
  }

  void finish(FirstError& errors) override {
    const Lock lock = lock_patiently<Lock>(mutex_);
    errors.or_keep([&] { train(); });
    for (GeoCopy& copy : copies_) copy.finish(steps_, errors);
    hear_end_rounds(errors);
    errors.or_keep([&] { tell_end_round({.kind = RequestKind::end_round, .round = steps_}); });
    for (GeoCopy& copy : copies_) errors.or_keep([&] { copy.confirm_progress(); });
    hear_end_rounds(errors);
  }

 private:
  GeoCopy& copy(int server) { return copies_[static_cast<std::size_t>(server)]; }

  void train() {
    open_.take(ended_);
    for_each_server(servers_, [&](int server) {
      Batch& batch = ended_[static_cast<std::size_t>(server)];
      const Finally trained([&] { batch.clear(); });
      copy(server).train(batch);
    });
  }

  /** Servers that live take part also when another does not. */
  void exchange() {
    for_each_server(servers_, [&](int server) { copy(server).send_progress(workers_, steps_); });
    finish_exchange();
  }

  void finish_exchange() {
    // What is received has to have this worker's own progress in it: dense values are read where
    // they lie, which waits for nothing.
    end_round();
    for_each_server(servers_, [&](int server) { copy(server).receive(); });
  }

  void end_round() {
    tell_end_round({.kind = RequestKind::end_round, .round = steps_});
    for_each_server(servers_, [&](int server) { copy(server).confirm_progress(); });
    hear_end_rounds();
  }

  std::int64_t push_steps_;
  int workers_;
  OpenBatch open_;
  std::shared_timed_mutex mutex_;
  std::vector<Batch> ended_;
  std::deque<GeoCopy> copies_;
  std::int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Geo& mode) {
  return std::make_unique<GeoWorker>(context, mode);
}

}  // namespace tutti::ps
