// Control messages between simulated processes, and what happens to them.
#include "comm/simulation/process.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "comm/simulation/wire.hpp"

namespace tutti::simulation {
namespace {

constexpr int kGraphTag = -1;  // of questions and answers
constexpr std::chrono::milliseconds kUnread{1};
/** From the first question for a sign of life until a host that is silent counts as lost, as the
 * kernels' keepalive has it. */
constexpr std::chrono::seconds kUntilTimeout{7};

std::vector<int> hosts_of(int hosts, int ranks) {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < hosts * ranks; ++rank) host_of_rank.push_back(rank / ranks);
  return host_of_rank;
}

ProcessNumber number_of(int rank) {
  return kFirstProcessNumber + static_cast<ProcessNumber>(rank) * 7919;
}

/** Kinds of messages that do not mix: a lane for each pair of ranks. */
std::uint64_t lane_of(int from, int to, int kind) {
  return (static_cast<std::uint64_t>(from) << 40U) ^ (static_cast<std::uint64_t>(to) << 16U) ^
         static_cast<std::uint64_t>(kind & 0xFFFF);
}

}  // namespace

/** The letters of one tag. */
class Process::Mailbox final : public Messenger {
 public:
  Mailbox(Process& process, int tag) : process_(process), tag_(tag) {}

  void send(const ControlMessage& message, int destination) override {
    if (process_.killed_ || process_.ended_.contains(destination)) return;
    Cluster& cluster = process_.cluster_;
    Process& to = cluster.process(destination);
    const auto copy = std::make_shared<const ControlMessage>(message);
    const auto deliver = [&to, copy, tag = tag_, source = process_.rank_] {
      to.come(tag, {copy, source});
    };
    ++cluster.traffic_.control_messages;
    const auto left =
        cluster.network_.send(process_.host_, to.host_, std::ssize(packed(message)),
                              lane_of(process_.rank_, destination, 0x8000 + tag_), deliver);
    leaving_.push_back({destination, left});
  }
  void flush() noexcept override {
    const auto now = process_.cluster_.scheduler_.now();
    std::erase_if(leaving_, [&](const Leaving& one) { return one.left <= now; });
  }
  bool is_sending(const std::function<bool(int)>& is_meant) const override {
    return !process_.killed_ &&
           std::any_of(leaving_.begin(), leaving_.end(),
                       [&](const Leaving& one) { return is_meant(one.destination); });
  }
  void receive(
      const std::function<void(const ControlMessage& message, int source)>& handle) override {
    std::deque<Letter>& letters = process_.letters_[tag_];
    while (!letters.empty()) {
      const Letter letter = std::move(letters.front());
      letters.pop_front();
      --process_.unread_;
      handle(*letter.message, letter.source);
    }
  }

 private:
  struct Leaving {
    int destination;
    Scheduler::Time left;
  };
  Process& process_;
  int tag_;
  std::vector<Leaving> leaving_;
};

// --- Processes ----------------------------------------------------------------------------------

Process::Process(Cluster& cluster, int rank)
    : cluster_(cluster),
      rank_(rank),
      host_(cluster.layout().host_of(rank)),
      waits_(cluster.scheduler(), number_of(rank)),
      graph_(cluster.scheduler(), waits_) {
  std::vector<ProcessNumber> numbers;
  for (int other = 0; other < size(); ++other) numbers.push_back(number_of(other));
  graph_.add(*this, kGraphTag);
  graph_.set_processes(*this, std::move(numbers), true);
}

Process::~Process() { graph_.remove(*this); }

int Process::size() const { return cluster_.size(); }

std::unique_ptr<Messenger> Process::messenger(int tag) {
  return std::make_unique<Mailbox>(*this, tag);
}

void Process::come(int tag, Letter letter) {
  if (killed_) return;
  letters_[tag].push_back(std::move(letter));
  ++unread_;
  wake(cluster_.tick_);
}

void Process::wake(Scheduler::Duration delay) { cluster_.scheduler_.wake(*task_, delay); }

void Process::compute(Scheduler::Duration time) {
  cluster_.scheduler_.sleep(time);
  if (killed_) throw Killed();
}

void Process::wait(Scheduler::Duration longest) {
  if (unread_ > 0) longest = std::min<Scheduler::Duration>(longest, kUnread);
  cluster_.scheduler_.sleep_until_woken(longest);
  if (killed_) throw Killed();
  if (std::exchange(interrupted_, false)) throw Interrupted();
}

void Process::interrupt() {
  interrupted_ = true;
  wake({});
}

// --- Connections --------------------------------------------------------------------------------

/** One leader's side. */
class Cluster::Connection final : public HostConnection {
 public:
  Connection(Cluster& cluster, const Process& process, int peer)
      : cluster_(cluster), process_(process), peer_(peer) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override { close(); }

  News receive() override {
    End& end = own_end();
    News news = std::exchange(end.news, {end.news.state, false, std::nullopt});
    const auto quiet = sign_of_life_after(process_.host(), peer_, cluster_.layout().host_count());
    const bool silent = cluster_.silence(process_.host(), peer_) > quiet + kUntilTimeout;
    if (news.state == News::State::open && silent) news.state = News::State::timed_out;
    return news;
  }
  void say_goodbye() noexcept override {
    send(1, [](End& end) { end.news.goodbye = true; });
    close();
  }
  void tell(const FailureReport& failure) noexcept override {
    const auto copy = std::make_shared<const FailureReport>(failure);
    send(1 + sizeof failure, [copy](End& end) { end.news.failure = *copy; });
  }
  bool all_have_ended() const override {
    const std::span<const int> ranks = cluster_.layout().ranks_of(peer_);
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int rank) { return cluster_.process(rank).is_killed(); });
  }

 private:
  End& own_end() const { return cluster_.end_of(process_.host(), peer_); }
  void send(std::int64_t bytes, std::function<void(End&)> what) const {
    if (process_.is_killed()) return;
    ++cluster_.traffic_.control_messages;
    cluster_.tell_peer(process_.host(), peer_, bytes, std::move(what));
  }
  void close() const {
    if (process_.is_killed() || std::exchange(own_end().closed, true)) return;
    cluster_.end_connection(process_.host(), peer_);
  }

  Cluster& cluster_;
  const Process& process_;
  int peer_;
};

/** One rank's hold of it. */
class Cluster::Line final : public HostLine {
 public:
  Line(Cluster& cluster, int host, int peer) : cluster_(cluster), host_(host), peer_(peer) {
    ++cluster_.end_of(host_, peer_).holders;
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() override {
    const bool was_last = --cluster_.end_of(host_, peer_).holders == 0;
    if (was_last && !cluster_.share_leaders_connection()) cluster_.end_line(host_, peer_);
  }

  bool ping() noexcept override {
    pinged_ = cluster_.scheduler_.now();
    return !has_ended();
  }
  bool has_answered() const override {
    const auto cut = cluster_.network_.cut_since(host_, peer_);
    return has_ended() || !cut || pinged_ < *cut;
  }
  std::chrono::milliseconds silence() const override {
    return has_ended() ? std::chrono::milliseconds(0) : cluster_.silence(host_, peer_);
  }
  bool has_ended() const override { return cluster_.end_of(host_, peer_).line_ended; }

 private:
  Cluster& cluster_;
  int host_;
  int peer_;
  Scheduler::Time pinged_{};
};

// --- The cluster --------------------------------------------------------------------------------

Cluster::Cluster(int hosts, int ranks, const NetworkModel& model, std::uint64_t seed,
                 std::int64_t most_copied)
    : network_(scheduler_, model, hosts, seed),
      layout_(hosts_of(hosts, ranks)),
      most_copied_(most_copied) {
  for (int rank = 0; rank < hosts * ranks; ++rank) {
    processes_.push_back(std::make_unique<Process>(*this, rank));
  }
}

void Cluster::start(const std::function<void(Process&)>& body) {
  for (const auto& one : processes_) {
    Process& process = *one;
    process.task_ = &scheduler_.start([&process, body] {
      try {
        body(process);
      } catch (const Killed&) {  // that was its end
      }
    });
  }
}

std::unique_ptr<Heartbeats> Cluster::connect(Process& process) {
  const int host = process.host();
  std::vector<Heartbeats::Connection> connections;
  std::vector<Heartbeats::Line> lines;
  for (const int peer : connected_hosts(host, layout_.host_count())) {
    lines.push_back({peer, std::make_unique<Line>(*this, host, peer)});
    if (layout_.local_rank_of(process.rank()) != 0) continue;
    connections.push_back({peer, std::make_unique<Connection>(*this, process, peer)});
  }
  return std::make_unique<Heartbeats>(layout_, host, std::move(connections), std::move(lines),
                                      scheduler_);
}

std::chrono::milliseconds Cluster::silence(int host, int peer) const {
  const auto cut = network_.cut_since(host, peer);
  if (!cut) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(scheduler_.now() - *cut);
}

void Cluster::end_connection(int host, int peer) {
  tell_peer(host, peer, 1, [line_too = share_leaders_connection()](End& end) {
    end.news.state = HostConnection::News::State::ended;
    end.line_ended = end.line_ended || line_too;
  });
}

void Cluster::end_line(int host, int peer) {
  network_.send(host, peer, 1, lane_of(host, peer, 0x4001),
                [this, host, peer] { end_of(peer, host).line_ended = true; });
}

void Cluster::tell_peer(int host, int peer, std::int64_t bytes, std::function<void(End&)> what) {
  network_.send(host, peer, bytes, lane_of(host, peer, 0x4000),
                [this, host, peer, what = std::move(what)] {
                  what(end_of(peer, host));
                  process(layout_.ranks_of(peer).front()).wake(tick_);
                });
}

/** What it has posted does not leave any more. */
void Cluster::mute(int rank) {
  Process& lost = process(rank);
  lost.killed_ = true;
  for (const auto& [context, wire] : lost.wires_) wire->drop_all();
  lost.letters_.clear();
  lost.unread_ = 0;
  scheduler_.continue_task(*lost.task_);
  scheduler_.wake(*lost.task_);
}

void Cluster::kill(int rank) {
  if (process(rank).killed_) return;
  const int host = layout_.host_of(rank);
  mute(rank);
  if (layout_.local_rank_of(rank) != 0) return;
  for (const int peer : connected_hosts(host, layout_.host_count())) {
    if (!std::exchange(end_of(host, peer).closed, true)) end_connection(host, peer);
  }
}

void Cluster::stop(int rank) { scheduler_.stop(*process(rank).task_); }
void Cluster::continue_process(int rank) { scheduler_.continue_task(*process(rank).task_); }

void Cluster::crash(int host) {
  cut_off(host);
  for (const int rank : layout_.ranks_of(host)) mute(rank);
}

void Cluster::cut_off(int host) {
  for (int other = 0; other < layout_.host_count(); ++other) {
    if (other != host) network_.cut(host, other);
  }
}

void Cluster::plug_in(int host) {
  for (int other = 0; other < layout_.host_count(); ++other) {
    if (other != host) network_.heal(host, other);
  }
}

}  // namespace tutti::simulation
