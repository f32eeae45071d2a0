// A worker: checks what it is asked for, and does it as the mode says.
#include "ps/worker.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/refuse.hpp"
#include "ps/dense/layout.hpp"
#include "ps/modes/first_error.hpp"
#include "ps/modes/worker_mode.hpp"
#include "ps/worker_arguments.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {

class Worker::Impl {
 public:
  explicit Impl(WorkerParts parts)
      : index(parts.index),
        count(static_cast<int>(parts.workers.size())),
        arguments(parts.tables, parts.dense),
        servers(std::move(parts.servers), std::move(parts.tables), parts.dense,
                std::move(parts.workers)),
        news(servers.count()),
        saves(servers, news),
        server_place(std::move(parts.server_place)),
        mode(make_worker_mode(
            {servers, news, saves, count, parts.seed, parts.servers_save, server_place.get()},
            parts.mode)) {
    if (index == 0 && !parts.loaded) send_initial_values(parts.dense);
    meet_others();
    mode->start();
    meet_others();
  }

  /** A child has the memory, and servers would take what it writes there for its parent's. */
  void refuse_in_forked_child() const {
    if (!fork_guard_.in_child()) return;
    throw CommunicationError(
        "the worker belongs to the process that made it, not to a forked child");
  }

  /** What is asked of a worker that has left makes no sense. */
  WorkerMode& serving() const {
    refuse_in_forked_child();
    require_presence(stopped);
    if (has_failed)
      throw Error("this worker is leaving: stop() has failed, and is to be called again");
    if (is_finished) throw Error("this worker is leaving: stop() is to be called again");
    return *mode;
  }

  /** What an interruption leaves of it is for the next call. */
  void barrier() {
    serving().flush();
    const RequestHeader header{.kind = RequestKind::barrier};
    Asked asked = take_left_barrier();
    try {
      // One that was refused before this worker came back has been left by the server as well.
      if (asked && asked.is_answered() && asked.take().header.outcome == Outcome::done) return;
      if (!asked) asked = servers.ask(0, header);
      servers.throw_unless_done(0, servers.wait(0, asked, header));
    } catch (const Error&) {
      throw;
    } catch (...) {
      const std::lock_guard lock(leaving_barriers_);
      if (asked) left_barriers_.push_back(std::move(asked));
      throw;
    }
  }

  /** What an interruption leaves of it is for the next call. */
  void stop() {
    refuse_in_forked_child();
    require_presence(has_stopped);
    if (stopped.exchange(true)) return;  // another thread does it
    try {
      if (!is_finished) finish();
      leave();
    } catch (...) {
      has_failed = static_cast<bool>(errors_);
      stopped = false;
      throw;
    }
    has_stopped = true;
    errors_.throw_kept();
  }

  const int index;
  const int count;
  const WorkerArguments arguments;
  Servers servers;
  News news;
  Saves saves;
  const std::shared_ptr<ServerPlace> server_place;
  const std::unique_ptr<WorkerMode> mode;
  std::atomic<bool> stopped = false;      // or a thread is about to
  std::atomic<bool> has_stopped = false;  // and no thread is in stop()
  std::atomic<bool> is_finished = false;  // nothing but leave() is left of stop()
  std::atomic<bool> has_failed = false;   // a part of stop(), of which more is left

 private:
  static void require_presence(bool has_left) {
    if (has_left) throw Error("this worker has left: stop() was called");
  }

  /** One that this worker has entered, and waits in no longer. */
  Asked take_left_barrier() {
    const std::lock_guard lock(leaving_barriers_);
    if (left_barriers_.empty()) return {};
    Asked left = std::move(left_barriers_.front());
    left_barriers_.pop_front();
    return left;
  }

  /** A checkpoint is seen to also where what was left could not be pushed. After an interruption
   * all is gone through again. Nothing is left then of what has failed, but in GEO mode of rows
   * that there was no memory to send: those are tried again, and the error is told all the same. */
  void finish() {
    errors_.or_keep([&] { mode->finish(errors_); });
    errors_.or_keep([&] { saves.finish(); });
    is_finished = true;
  }

  void send_initial_values(const std::vector<DenseParameter>& dense) {
    for (int server = 0; server < servers.count(); ++server) {
      if (servers.elements(server) == 0) continue;
      std::vector<float> values;
      for (const Block& block : servers.end(server).blocks) {
        const std::vector<float>& from = dense[static_cast<std::size_t>(block.parameter)].initial;
        values.resize(static_cast<std::size_t>(begin_of(block, std::ssize(values))));
        const std::size_t end = values.size() + static_cast<std::size_t>(block.count);
        if (!from.empty()) {
          values.insert(values.end(), from.begin() + block.offset,
                        from.begin() + block.offset + block.count);
        }
        values.resize(end);
      }
      servers.send_values(server, RequestKind::set_dense, values, 0);
    }
  }

  /** At all servers: what worker 0 has sent each of them is there then. */
  void meet_others() {
    std::vector<Asked> asked;
    for (int server = 0; server < servers.count(); ++server)
      asked.push_back(servers.ask(server, {.kind = RequestKind::barrier}));
    for (int server = 0; server < servers.count(); ++server)
      servers.take(server, asked[static_cast<std::size_t>(server)]);
  }

  /** Tells the servers that live: each once, as they hear nothing more of a worker then, and
   * whatever becomes of the others. */
  void leave() {
    told_.resize(static_cast<std::size_t>(servers.count()));
    const auto each = [&](const auto& action) {
      for (int server = 0; server < servers.count(); ++server) {
        std::optional<Asked>& told = told_[static_cast<std::size_t>(server)];
        try {
          action(server, told);
        } catch (const PeerLost&) {  // a server that is gone need not be told
          told.emplace();
        } catch (const Error&) {
          errors_.keep_current();
          told.emplace();
        } catch (const std::bad_alloc&) {
          errors_.keep_current();
          told.emplace();
        }
      }
    };
    each([&](int server, std::optional<Asked>& told) {
      if (!told) told = servers.ask(server, {.kind = RequestKind::stop});
    });
    each([&](int server, std::optional<Asked>& told) {
      if (*told) servers.take(server, *told);
    });
  }

  const ForkGuard fork_guard_;
  std::mutex leaving_barriers_;
  std::deque<Asked> left_barriers_;         // of threads that were interrupted
  FirstError errors_;                       // of stop()
  std::vector<std::optional<Asked>> told_;  // of each server, that it has left
};

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() = default;

std::unique_ptr<Worker> make_worker(WorkerParts parts) {
  return std::make_unique<Worker>(std::make_unique<Worker::Impl>(std::move(parts)));
}

int Worker::index() const { return impl_->index; }
int Worker::count() const { return impl_->count; }
int Worker::table(std::string_view name) const { return impl_->arguments.table(name); }
int Worker::parameter(std::string_view name) const { return impl_->arguments.parameter(name); }

void Worker::lookup(int table, std::span<const std::int64_t> ids, std::span<float> rows) {
  WorkerMode& mode = impl_->serving();
  impl_->arguments.check_ids("lookup", table, ids);
  impl_->arguments.check_rows("lookup", "rows", table, ids.size(), rows.size());
  if (!ids.empty()) mode.look_up(table, ids, rows.data());
}

void Worker::prefetch(int table, std::span<const std::int64_t> ids) {
  WorkerMode& mode = impl_->serving();
  impl_->arguments.check_ids("prefetch", table, ids);
  if (!ids.empty()) mode.prefetch(table, ids);
}

void Worker::push(int table, std::span<const std::int64_t> ids, std::span<const float> gradients,
                  std::span<const float> shows, std::span<const float> clicks) {
  WorkerMode& mode = impl_->serving();
  impl_->arguments.check_ids("push", table, ids);
  impl_->arguments.check_rows("push", "gradients", table, ids.size(), gradients.size());
  impl_->arguments.check_counts("push", "shows", table, ids.size(), shows);
  impl_->arguments.check_counts("push", "clicks", table, ids.size(), clicks);
  if (ids.empty()) return;
  mode.push(table, {ids, gradients.data(), shows.empty() ? nullptr : shows.data(),
                    clicks.empty() ? nullptr : clicks.data()});
}

void Worker::push_dense(int parameter, std::span<const float> gradient) {
  WorkerMode& mode = impl_->serving();
  impl_->arguments.check_dense("push_dense", "gradient", parameter, gradient.size());
  mode.push_dense(parameter, gradient);
}

void Worker::pull_dense(int parameter, std::span<float> value) {
  WorkerMode& mode = impl_->serving();
  impl_->arguments.check_dense("pull_dense", "value", parameter, value.size());
  mode.pull_dense(parameter, value.data());
}

DenseView Worker::view_dense(int parameter) {
  WorkerMode& mode = impl_->serving();
  impl_->arguments.check_shared("view_dense", parameter);
  return mode.view_dense(parameter);
}

DenseGradient Worker::gradient_memory(int parameter) {
  WorkerMode& mode = impl_->serving();
  impl_->arguments.check_parameter("gradient_memory", parameter);
  return mode.gradient_memory(parameter);
}

void Worker::step() {
  WorkerMode& mode = impl_->serving();
  ++impl_->servers.counters().steps;
  mode.step();
}

void Worker::flush() { impl_->serving().flush(); }
void Worker::barrier() { impl_->barrier(); }

void Worker::save(std::string_view folder) {
  WorkerMode& mode = impl_->serving();
  if (folder.empty()) refuse("save: folder is empty");
  mode.flush();
  mode.save(std::filesystem::absolute(folder).native());  // servers may be in other folders
}

void Worker::stop() { impl_->stop(); }
bool Worker::has_stopped() const { return impl_->has_stopped; }

void Worker::set_reason(std::string_view reason) {
  impl_->refuse_in_forked_child();
  for (int server = 0; server < impl_->servers.count(); ++server)
    impl_->servers.link(server).set_reason(reason);
}

WorkerStats Worker::stats() const {
  impl_->refuse_in_forked_child();
  WorkerCounters& counters = impl_->servers.counters();
  WorkerStats stats{.steps = counters.steps,
                    .pushes = counters.pushes,
                    .merged = counters.merged,
                    .rows_looked_up = counters.rows_looked_up,
                    .rows_pushed = counters.rows_pushed,
                    .torn_rows = counters.torn_rows};
  for (int server = 0; server < impl_->servers.count(); ++server) {
    stats.bytes_sent += impl_->servers.link(server).bytes_sent();
    stats.bytes_received += impl_->servers.link(server).bytes_received();
  }
  return stats;
}

std::vector<int> Worker::lost_workers() const { return impl_->news.lost_workers(); }

}  // namespace tutti::ps
