// A worker in sync mode: pushes go out as they are, and a step waits for the round.
#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "ps/modes/patient_lock.hpp"
#include "ps/modes/worker_mode.hpp"

namespace tutti::ps {
namespace {

class SyncWorker final : public WorkerMode {
  using Lock = std::unique_lock<std::timed_mutex>;

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
    const Lock lock = lock_patiently<Lock>(mutex_);
    wanted_.push_back({table, {ids.begin(), ids.end()}});
    if (wanted_.size() > kMostWanted) wanted_.pop_front();
  }

  /** Nothing is merged: the server adds up the rows of all workers in the order in which one worker
   * with all batches would. */
  void push(int table, const RowPush& push) override {
    const TableSpec& spec = servers_.table(table);
    const IdSplit split(push.ids, spec.split, servers_.count(), spec.padding_idx);
    const Lock lock = lock_patiently<Lock>(mutex_);
    send_left();
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
    Lock lock = lock_patiently<Lock>(mutex_);
    send_left();
    dense_.take(sums_);
    end_round();
    hear_end_rounds();
    const bool is_saving = saves_.begin_if_due();
    lock.unlock();
    if (is_saving) saves_.finish();
  }

  void flush() override {
    const Lock lock = lock_patiently<Lock>(mutex_);
    send_left();
  }

  /** All servers hear of it in the same round. */
  void save(std::string_view folder) override {
    Lock lock = lock_patiently<Lock>(mutex_);
    Saves::Begun save = saves_.begin(folder);
    lock.unlock();
    save.wait();
  }

  void finish(FirstError& errors) override {
    bool left = !dense_.empty();
    {
      const Lock lock = lock_patiently<Lock>(mutex_);
      errors.or_keep([&] { send_left(); });
      hear_end_rounds(errors);
      left = left || pushed_;
    }
    if (left) errors.or_keep([&] { step(); });
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

  /** The round is over, as a rule, when this returns. */
  void end_round() {
    // Before the server's thread is woken by what is sent.
    ServerTurn turn(waits_for_the_round_alone() ? server_place_ : nullptr);
    const EndOfRound& end = send_round();
    turn.serve_until([&] { return is_answered(end); });
  }

  /** What an interruption has kept from some servers: before anything of the next round. */
  void send_left() {
    if (left_) send_round();
    saves_.begin_if_due();
  }

  /** Sends what there is of the round, and that it ends; or what is left of that. It is still to be
   * heard, with what has failed. */
  const EndOfRound& send_round() {
    if (!left_) left_.emplace(EndOfRound{{.kind = RequestKind::end_round, .round = round_ + 1}});
    send_sums(left_->errors);
    round_ = left_->header.round;
    ask_all(*left_);
    EndOfRound& end = hear_later(*std::exchange(left_, std::nullopt));
    end.errors.or_keep([&] {
      servers_.renew_prefetched();  // what nobody has looked up yet is of the last round
      for (const Wanted& wanted : std::exchange(wanted_, {}))
        servers_.prefetch(wanted.table, wanted.ids);
    });
    return end;
  }

  void send_sums(FirstError& errors) {
    for (int server = 0; server < servers_.count(); ++server) {
      Batch& sum = sums_[static_cast<std::size_t>(server)];
      errors.or_keep([&] {
        if (sum.empty()) return;
        // A wait may end in an exception: not in the middle of it. There is none on this worker's
        // turn, which waits_for_the_round_alone().
        const std::int64_t most = std::ssize(servers_.end(server).blocks) + 1;
        servers_.make_room(server, std::min(sum.requests(), most));
        sum.send(servers_, round_);
      });
      sum.clear();
    }
    pushed_ = false;
  }

  ServerPlace* server_place_;
  OpenBatch dense_;
  std::timed_mutex mutex_;
  std::vector<Batch> sums_;
  std::deque<Wanted> wanted_;
  std::int64_t round_ = 0;
  bool pushed_ = false;
  std::optional<EndOfRound> left_;  // being sent, or interrupted then
};

}  // namespace

std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Sync&) {
  return std::make_unique<SyncWorker>(context);
}

}  // namespace tutti::ps
