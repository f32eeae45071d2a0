// What a worker's calls do in each mode.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ps/modes/batch.hpp"
#include "ps/modes/first_error.hpp"
#include "ps/modes/news.hpp"
#include "ps/modes/placed_gradient.hpp"
#include "ps/modes/saves.hpp"
#include "ps/modes/server_turn.hpp"
#include "ps/modes/servers.hpp"
#include "tutti/ps/mode.hpp"

namespace tutti::ps {

/** What a worker is in the midst of others. */
struct WorkerContext {
  Servers& servers;
  News& news;
  Saves& saves;
  int workers = 1;
  std::uint64_t seed = 0;               ///< of the job
  bool servers_save = false;            ///< from time to time, as server 0 says when a step ends
  ServerPlace* server_place = nullptr;  ///< of the server of this process
};

/** As Worker has them, of arguments that have been checked. Calls are safe from several threads. */
class WorkerMode {
 public:
  explicit WorkerMode(const WorkerContext& context)
      : servers_(context.servers), news_(context.news), saves_(context.saves) {}
  WorkerMode(const WorkerMode&) = delete;
  WorkerMode& operator=(const WorkerMode&) = delete;
  virtual ~WorkerMode() = default;

  virtual void look_up(int table, std::span<const std::int64_t> ids, float* rows) {
    servers_.look_up(table, ids, rows);
  }
  virtual void prefetch(int table, std::span<const std::int64_t> ids) {
    servers_.prefetch(table, ids);
  }
  virtual void push(int table, const RowPush& push) = 0;
  virtual void push_dense(int parameter, std::span<const float> gradient) = 0;
  virtual void pull_dense(int parameter, float* value) { servers_.pull_dense(parameter, value); }
  virtual DenseView view_dense(int parameter) { return servers_.view_dense(parameter); }
  virtual DenseGradient gradient_memory(int parameter) = 0;

  /** All workers are there, and servers have the initial values. */
  virtual void start() {}
  virtual void step() = 0;
  /** Ends no batch. */
  virtual void flush() {}
  /** Of what servers hold between two steps of this worker. */
  virtual void save(std::string_view folder) { saves_.begin(folder).wait(); }
  /** Pushes what is left, checkpoints aside: each part is tried whatever becomes of the others.
   * After what is no Error it may be called again; otherwise nothing is called then. */
  virtual void finish(FirstError& errors) = 0;

 protected:
  /** What all servers are told: that so many steps have been ended. */
  struct EndOfRound {
    RequestHeader header;
    std::vector<Asked> asked{};  ///< empty: heard, or lost
    FirstError errors{};         ///< to be thrown once all have been heard
  };
  /** Tells those that have not been told. */
  void ask_all(EndOfRound& end);
  /** Whether there is nothing to wait for. */
  static bool is_answered(const EndOfRound& end);
  /** Tells all servers of the end of a round, once they have been heard on those before. */
  void tell_end_round(const RequestHeader& header);
  /** Waits for their replies to what they have been told. Throws what a push of a round came to.
   * What an interruption leaves is for the next call: they say only once that a checkpoint is due.
   */
  void hear_end_rounds();
  void hear_end_rounds(FirstError& errors);
  /** They have been told, and are still to be heard: it stays where it is until then. */
  EndOfRound& hear_later(EndOfRound end) { return unheard_.emplace_back(std::move(end)); }

  Servers& servers_;
  News& news_;
  Saves& saves_;

 private:
  using Clock = std::chrono::steady_clock;

  /** Of the last that they have been told of, or not; after what an InterruptCheck throws it may be
   * called again. An error of one server does not keep the others from being heard. */
  void take_end_round(EndOfRound& end, bool is_last);
  void take_end_round(EndOfRound& end, int server, bool is_last, Clock::time_point begin);

  std::deque<EndOfRound> unheard_;
};

/** The batch that a worker is at, which several threads may add to: a part for each server. */
class OpenBatch {
 public:
  explicit OpenBatch(const Servers& servers);

  void add_rows(int table, const RowPush& push);
  /** Copies, unless it is gradient_memory() that nobody has pushed before: refuses it if so. */
  void add_dense(int parameter, std::span<const float> gradient);
  DenseGradient gradient_memory(int parameter);
  /** Whether nothing has been added. */
  bool empty();
  /** Ends it: what was added is in `parts`, whose memory is used again. */
  void take(std::vector<Batch>& parts);

 private:
  const Servers& servers_;
  std::mutex mutex_;
  std::vector<Batch> parts_;
  GradientMemory memory_;
};

std::vector<Batch> empty_batches(const Servers& servers);

std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Mode& mode);
std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Sync& mode);
std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Async& mode);
std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const HalfAsync& mode);
std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Geo& mode);

}  // namespace tutti::ps
