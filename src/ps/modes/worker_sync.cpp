// A worker in sync mode: pushes go out as they are, and a step waits for the round.
#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "ps/modes/worker_mode.hpp"

namespace tutti::ps {
namespace {

class SyncWorker final : public WorkerMode {
 public:
  explicit SyncWorker(const WorkerContext& context)
      : WorkerMode(context),
        server_place_(context.server_place),
        dense_(context.servers),
        sums_(empty_batches(context.servers)) {}

  /** Between hosts rows are asked for at the end of the round: now, they would be of the last. */
  void prefetch(int table, std::span<const std::int64_t> ids) override {
    if (servers_.all_on_this_host()) {
      servers_.prefetch(table, ids);
      return;
    }
    const std::lock_guard lock(mutex_);
    wanted_.push_back({table, {ids.begin(), ids.end()}});
    if (wanted_.size() > kMostWanted) wanted_.pop_front();
  }

  /** Nothing is merged: the server adds up the rows of all workers in the order in which one worker
   * with all batches would. */
  void push(int table, const RowPush& push) override {
    const TableSpec& spec = servers_.table(table);
    const IdSplit split(push.ids, spec.split, servers_.count(), spec.padding_idx);
    const std::lock_guard lock(mutex_);
    std::vector<Drafted> parts;  // all are written before the first is sent: or else there is none
    for (int server = 0; server < servers_.count(); ++server) {
      const IdShare share = split.share(server);
      if (share.ids.empty()) continue;
      parts.push_back(
          servers_.draft_rows(server, RequestKind::push_rows, table, push, share, 1.0F, round_));
    }
    pushed_ = true;
    for (Drafted& part : parts) servers_.send_rows(part);
  }

  void push_dense(int parameter, std::span<const float> gradient) override {
    dense_.add_dense(parameter, gradient);
  }
  DenseGradient gradient_memory(int parameter) override {
    return dense_.gradient_memory(parameter);
  }

  void step() override {
    std::unique_lock lock(mutex_);
    dense_.take(sums_);
    EndOfRound end = end_round();
    take_end_round(end);
    std::optional<Saves::Begun> save = saves_.begin_if_due();
    lock.unlock();
    if (save) save->wait_or_log();
  }

  /** All servers hear of it in the same round. */
  void save(std::string_view folder) override {
    std::unique_lock lock(mutex_);
    Saves::Begun save = saves_.begin(folder);
    lock.unlock();
    save.wait();
  }

  void finish() override {
    bool left = !dense_.empty();
    {
      const std::lock_guard lock(mutex_);
      left = left || pushed_;
    }
    if (left) step();
  }

 private:
  static constexpr std::size_t kMostWanted = 8;
  /** Requests that other threads may send meanwhile, one a thread: a barrier, say. */
  static constexpr std::int64_t kOfOtherThreads = 64;
  struct Wanted {
    int table;
    std::vector<std::int64_t> ids;
  };

  /** Whether nothing that ends a round waits for a server before all is sent: who does a server's
   * work cannot wait for it. */
  bool waits_for_the_round_alone() const {
    if (!servers_.all_on_this_host()) return false;  // or else there are look-ups, too
    for (int server = 0; server < servers_.count(); ++server) {
      const std::int64_t most = std::ssize(servers_.end(server).blocks) + 2 + kOfOtherThreads;
      if (!servers_.link(server).has_room(most)) return false;
    }
    return true;
  }

  /** Sends what there is of it. The round is over, as a rule, when this returns. */
  EndOfRound end_round() {
    // Before the server's thread is woken by what is sent.
    ServerTurn turn(waits_for_the_round_alone() ? server_place_ : nullptr);
    for (Batch& sum : sums_) {
      if (!sum.empty()) sum.send(servers_, round_);
      sum.clear();
    }
    pushed_ = false;
    EndOfRound end = ask_end_round(++round_);
    servers_.renew_prefetched();  // what nobody has looked up yet is of the last round
    for (const Wanted& wanted : std::exchange(wanted_, {}))
      servers_.prefetch(wanted.table, wanted.ids);
    turn.serve_until([&] { return std::ranges::all_of(end.asked, &Asked::is_answered); });
    return end;
  }

  ServerPlace* server_place_;
  OpenBatch dense_;
  std::mutex mutex_;
  std::vector<Batch> sums_;
  std::deque<Wanted> wanted_;
  std::int64_t round_ = 0;
  bool pushed_ = false;
};

}  // namespace

std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Sync&) {
  return std::make_unique<SyncWorker>(context);
}

}  // namespace tutti::ps
