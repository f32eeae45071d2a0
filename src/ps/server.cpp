// A server: takes requests, has the mode do what they ask for, and looks after who lives.
#include "ps/server.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "base/deadline.hpp"
#include "base/finally.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "ps/modes/server_mode.hpp"
#include "ps/request_line.hpp"
#include "ps/saver.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {

class Server::Impl final : public Serving {
 public:
  explicit Impl(ServerParts parts)
      : index(parts.index),
        workers_(std::move(parts.workers)),
        timeout_(parts.timeout),
        round_(parts.round),
        links_(std::move(parts.links)),
        place_(parts.place ? std::move(parts.place) : std::make_shared<ServerPlace>()),
        stores_(std::move(parts.tables), std::move(parts.dense)),
        members_(workers_.size()),
        lines_(workers_.size()),
        mode_(make_server_mode(parts.mode, stores_, members_, *links_)),
        saver_(
            {parts.checkpoint, parts.every, parts.save_at_end, parts.job},
            [this] { return state(); }, parts.index, parts.servers, members_.at_start()) {}

  void run() {
    {
      std::unique_lock lock(place_->mutex);
      const Finally ended([&] { place_->server = nullptr; });
      place_->server = this;
      while (members_.living() > 0) {
        sleeps_for_ = idle_limit();
        const std::optional<Request> request = links_->next(sleeps_for_, lock);
        if (failure_) std::rethrow_exception(failure_);
        go_on(request);
        lock.unlock();  // somebody may ask for statistics
        lock.lock();
      }
    }
    saver_.save_at_end(timeout_);
  }

  void stay_awake() override { links_->set_sleeping(false); }
  bool serve_next() override {
    std::optional<Request> request;
    or_end([&] {
      request = links_->poll();
      if (request) go_on(request);
    });
    return request && !failure_;
  }
  void rest() override {
    links_->set_sleeping(true);
    while (serve_next()) continue;
    or_end([&] { go_on(std::nullopt); });
    // Somebody may wait by now whom that thread has to look after.
    if (failure_ || idle_limit() < sleeps_for_) links_->wake();
  }

  ServerStats stats() const {
    const std::lock_guard lock(place_->mutex);
    ServerStats stats;
    for (const Table& table : stores_.tables()) stats.tables.push_back(table.stats());
    stats.pushes = pushes_;
    stats.rows_updated = stores_.rows_updated();
    stats.lost_workers.assign(lost_.begin(), lost_.end());
    return stats;
  }

  const int index;

 private:
  /** Steps that one message ends: more are none of a training. */
  static constexpr std::int64_t kMostSteps = 1'000'000;

  /** That who asks again has at least: the server itself may have stood still. */
  static constexpr std::chrono::milliseconds kLeastPatience{1000};

  RequestLine& line(int worker) { return lines_[static_cast<std::size_t>(worker)]; }

  /** What ends the server ends it in its own thread; until then it answers nothing more. */
  template <class Action>
  void or_end(const Action& action) {
    if (failure_) return;
    try {
      action();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  /** After each request, and now and then. */
  void go_on(const std::optional<Request>& request) {
    if (request) take(*request);
    for (const LostWorker& lost : links_->lost()) lose(lost.worker, lost.reason);
    lose_overdue();
    saver_.go_on(request.has_value());
    serve_lines();
  }

  ServerState state() {
    return {stores_.tables(), &stores_.dense(), round_ + mode_->rounds_applied()};
  }

  std::chrono::nanoseconds idle_limit() const {
    const bool somebody_waits =
        std::ranges::any_of(lines_, [](const RequestLine& line) { return !line.requests.empty(); });
    const std::chrono::nanoseconds limit = std::chrono::milliseconds(somebody_waits ? 50 : 1000);
    return std::min(limit, saver_.idle_limit());
  }

  void take(const Request& request) {
    if (!members_.lives(request.worker)) return;
    RequestLine& line = this->line(request.worker);
    line.requests.push_back(request);
    line.heard = RequestLine::Clock::now();
    const RequestKind kind = request.header.kind;
    if (kind == RequestKind::save || kind == RequestKind::finish_save) line.saved = line.heard;
  }

  /** Until nobody's first request can be answered: an answer to one may be what others wait for. */
  void serve_lines() {
    for (bool served = true; served;) {
      served = false;
      for (int worker = 0; worker < members_.at_start(); ++worker) {
        while (!line(worker).requests.empty() && serve(line(worker))) served = true;
      }
      served = served || refuse_circle();
    }
  }

  /** Two that wait for each other, one in a barrier and one at the end of a step, would do so until
   * the deadline: the one in the barrier is told. The other's step is ended on all servers, of
   * which one alone knows of barriers: it stays so. */
  bool refuse_circle() {
    for (RequestLine& line : lines_) {
      if (!line.waits_for(RequestKind::barrier)) continue;
      const Request barrier = line.requests.front();
      for (const RequestLine& other : lines_) {
        if (!other.waits_for(RequestKind::end_round)) continue;
        const Request& end = other.requests.front();
        if (!holds_up(members_, barrier.worker, end) || !holds_up(members_, end.worker, barrier))
          continue;
        const std::string text =
            name_of(barrier.worker) + " waits in a barrier, and " + name_of(end.worker) + " at " +
            described(end) + ", as it does in stop() if it has pushed since: each for the other";
        members_.leave_barrier(barrier.worker);
        refuse_with(barrier, Outcome::mismatch, text.c_str());
        finish_first(line);
        return true;
      }
    }
    return false;
  }

  /** Whether the first request of a line is done with. */
  bool serve(RequestLine& line) {
    const Request request = line.requests.front();
    const bool is_first_look = !std::exchange(line.begun, true);
    if (!handle(request, is_first_look)) {
      if (is_first_look) begin_to_wait(line);
      return false;
    }
    finish_first(line);
    return true;
  }

  /** Who asks again because of a checkpoint waits since the worker that sees to it was last heard:
   * if that stalls meanwhile it is lost after one deadline, not two. */
  void begin_to_wait(RequestLine& line) {
    const RequestLine::Clock::time_point now = RequestLine::Clock::now();
    line.waits_since = line.asks_again_since.value_or(now);
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - line.waits_since);
    line.deadline.emplace(
        std::clamp(timeout_ - waited, std::min(kLeastPatience, timeout_), timeout_));
  }

  static void finish_first(RequestLine& line) {
    if (!line.requests.empty()) line.requests.pop_front();
    line.begun = false;
    line.deadline.reset();
    line.asks_again_since.reset();
  }

  bool handle(const Request& request, bool is_first_look) {
    try {
      return try_to_handle(request, is_first_look);
    } catch (const std::bad_alloc&) {
      refuse_with(request, Outcome::no_memory, "out of memory");
    } catch (const SystemError& error) {
      refuse_with(request, Outcome::no_memory, error.what());
    } catch (const Error& error) {
      refuse_with(request, Outcome::refused, error.what());
    }
    return true;
  }

  void refuse_with(const Request& request, Outcome outcome, const char* reason) {
    mode_->answer_kept(request.worker);
    give_answer(*links_, request, Answer::with_text(outcome, reason));
  }

  bool try_to_handle(const Request& request, bool is_first_look) {
    switch (request.header.kind) {
      case RequestKind::push_rows:
      case RequestKind::push_dense:
      case RequestKind::add_rows:
      case RequestKind::add_dense:
        mode_->push(request);
        ++pushes_;
        return true;
      case RequestKind::end_round:
        return end_round(request, is_first_look);
      default:
        mode_->answer_kept(request.worker);
    }
    const std::optional<Answer> answer = answer_to(request, is_first_look);
    if (answer) give_answer(*links_, request, *answer);
    return answer.has_value();
  }

  std::optional<Answer> answer_to(const Request& request, bool is_first_look) {
    switch (request.header.kind) {
      case RequestKind::set_dense:
        stores_.apply(request, 1.0F);
        return Answer{};
      case RequestKind::answer_all:
        return Answer{};
      case RequestKind::look_up:
        return stores_.look_up(request);
      case RequestKind::pull_dense:
        return stores_.pull_dense(request);
      case RequestKind::pull_changed:
        return mode_->pull_changed(request);
      case RequestKind::barrier:
        if (is_first_look) members_.enter_barrier(request.worker);
        if (members_.barriers_passed() < members_.barriers(request.worker)) return std::nullopt;
        return Answer{};
      case RequestKind::save:
        return saver_.save(request);
      case RequestKind::finish_save:
        return saver_.publish(request);
      case RequestKind::stop:
        remove(request.worker, nullptr);
        return Answer{};
      default:
        throw InvalidArgument("there is no request " +
                              std::to_string(static_cast<int>(request.header.kind)));
    }
  }

  bool end_round(const Request& request, bool is_first_look) {
    const int worker = request.worker;
    if (is_first_look) {
      const std::int64_t steps = request.header.round - members_.rounds(worker);
      mode_->count_steps(std::clamp<std::int64_t>(steps, 0, kMostSteps));
      members_.set_rounds(worker, request.header.round);
    }
    std::optional<Answer> answer = mode_->end_round(request, saver_.is_saving());
    if (!answer) return false;
    if (answer->outcome == Outcome::done) answer->payload = round_reply(worker);
    give_answer(*links_, request, *answer);
    return true;
  }

  std::vector<std::byte> round_reply(int worker) {
    RoundReply reply{.slowest = members_.slowest()};
    if (saver_.take_due(worker == members_.lowest())) reply.save_due = 1;
    std::vector<std::byte> payload(sizeof(reply) + lost_.size() * sizeof(std::int32_t));
    std::memcpy(payload.data(), &reply, sizeof(reply));
    std::byte* to = payload.data() + sizeof(reply);
    for (const std::int32_t lost : lost_) {
      std::memcpy(to, &lost, sizeof(lost));
      to += sizeof(lost);
    }
    return payload;
  }

  /** A worker has stopped, or is lost. */
  void remove(int worker, const std::string* lost_because) {
    members_.remove(worker);
    mode_->remove(worker, lost_because);
    saver_.forget(worker);
  }

  void lose(int worker, const std::string& reason) {
    if (!members_.lives(worker)) return;
    // Those that cannot go on leave as well, which is no news; nor is what server 0 tells.
    const bool is_news = index == 0 && !mode_->has_failed();
    lost_.insert(worker);
    line(worker) = {};
    remove(worker, &reason);
    const std::string rest = mode_->can_go_on() ? std::to_string(members_.living()) + " go on"
                                                : "the others cannot go on";
    log(is_news ? LogLevel::warn : LogLevel::info, "server " + std::to_string(index) + ": " +
                                                       name_of(worker) + " is lost: " + reason +
                                                       "; " + rest);
  }

  const std::string& name_of(int worker) const {
    return workers_[static_cast<std::size_t>(worker)].text;
  }

  /** Who holds up others until their deadline is lost; but who has only more to do than they before
   * a barrier is not: they are told for whom they have waited in vain. And nobody is because of a
   * checkpoint: who waits for that asks again. */
  void lose_overdue() {
    for (RequestLine& line : lines_) {
      if (!line.deadline || !line.deadline->expired()) continue;
      const Request waiting = line.requests.front();
      line.deadline.emplace(timeout_);
      const bool at_barrier = waiting.header.kind == RequestKind::barrier;
      bool saving = !at_barrier && saver_.is_saving();
      std::optional<RequestLine::Clock::time_point> saved;
      std::string busy;
      for (int worker = 0; worker < members_.at_start(); ++worker) {
        if (!members_.lives(worker) || !holds_up(members_, worker, waiting)) continue;
        if (this->line(worker).saved > line.waits_since) {
          saving = true;
          saved =
              std::max(saved.value_or(RequestLine::Clock::time_point{}), this->line(worker).saved);
        } else if (at_barrier && this->line(worker).heard > line.waits_since) {
          busy += (busy.empty() ? "" : ", ") + name_of(worker);
        } else {
          links_->drop(worker);
          lose(worker, "it did not come to " + described(waiting) + " within " +
                           seconds_text(timeout_) + " of " + name_of(waiting.worker));
        }
      }
      if (busy.empty() && !saving) continue;
      if (at_barrier) members_.leave_barrier(waiting.worker);
      mode_->answer_kept(waiting.worker);
      give_answer(*links_, waiting,
                  busy.empty() ? Answer{.outcome = Outcome::not_yet}
                               : Answer::with_text(Outcome::too_late, "a barrier: " + busy +
                                                                          " did not come within " +
                                                                          seconds_text(timeout_)));
      finish_first(line);
      if (busy.empty()) line.asks_again_since = saved;
      line.heard = RequestLine::Clock::now();  // it is there, as who waits on knows by that
    }
  }

  std::vector<Name> workers_;
  std::chrono::milliseconds timeout_;
  std::int64_t round_;  // when it began
  std::unique_ptr<Links> links_;
  std::shared_ptr<ServerPlace> place_;  // its mutex is that of links_, and of all that follows
  std::chrono::nanoseconds sleeps_for_{};
  std::exception_ptr failure_;  // on a worker's turn
  Stores stores_;
  Members members_;
  std::vector<RequestLine> lines_;
  std::unique_ptr<ServerMode> mode_;
  Saver saver_;
  std::set<std::int32_t> lost_;
  std::int64_t pushes_ = 0;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

std::unique_ptr<Server> make_server(ServerParts parts) {
  return std::make_unique<Server>(std::make_unique<Server::Impl>(std::move(parts)));
}

int Server::index() const { return impl_->index; }
void Server::run() { impl_->run(); }
ServerStats Server::stats() const { return impl_->stats(); }

}  // namespace tutti::ps
