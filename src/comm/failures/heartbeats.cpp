// What the connections between hosts tell of those at the other end.
#include "comm/failures/heartbeats.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace tutti {
namespace {

/** How long a kernel has to acknowledge a byte. */
constexpr std::chrono::milliseconds kToAcknowledge{300};
/** Behind a slow wire; nobody may have looked when the answer came. Less than the time after which
 * an inquiry that has pinged decides. */
constexpr std::chrono::milliseconds kLongestToAcknowledge{1200};
/** Signs of life that a host that was silent for so long has missed at least, a second apart. */
constexpr std::chrono::seconds kMissed{2};
constexpr std::chrono::milliseconds kForTheRest{300};  // of a host's processes to end
constexpr std::chrono::milliseconds kToBeHeard{100};   // what those told that have
constexpr int kAllConnected = 17;                      // hosts, of which each has 16 others

/** Both losses, of ranks whose hosts do not answer, and of others that have ended. */
Loss with(Loss silent, const Loss& ended) {
  std::vector<int> others;
  std::copy_if(ended.ranks.begin(), ended.ranks.end(), std::back_inserter(others), [&](int rank) {
    return std::find(silent.ranks.begin(), silent.ranks.end(), rank) == silent.ranks.end();
  });
  if (silent.ranks.empty()) return ended;
  if (others.empty()) return silent;
  silent.ranks.insert(silent.ranks.end(), others.begin(), others.end());
  silent.reason += (others.size() > 1 ? ", and the processes of " : ", and the process of ") +
                   ranks_text(others) + (others.size() > 1 ? " have ended" : " has ended");
  return silent;
}

}  // namespace

Loss loss_of_hosts(const Layout& layout, std::span<const int> hosts) {
  Loss loss;
  std::string list;
  for (const int host : hosts) {
    const std::span<const int> ranks = layout.ranks_of(host);
    loss.ranks.insert(loss.ranks.end(), ranks.begin(), ranks.end());
    list += (list.empty() ? "" : " and of ") + ranks_text(ranks);
  }
  loss.reason =
      std::string("no answer from the host") + (hosts.size() > 1 ? "s" : "") + " of " + list;
  return loss;
}

bool all_are_connected(int hosts) { return hosts <= kAllConnected; }

bool are_neighbours(int one, int other, int hosts) {
  return (one + 1) % hosts == other || (other + 1) % hosts == one;
}

std::chrono::seconds sign_of_life_after(int own, int other, int hosts) {
  if (all_are_connected(hosts) || are_neighbours(own, other, hosts)) return std::chrono::seconds(1);
  return std::chrono::seconds(2 * std::bit_width(static_cast<unsigned>(hosts - 1)));
}

std::vector<int> connected_hosts(int own, int hosts) {
  std::vector<int> others;
  for (int host = 0; host < hosts; ++host) {
    const auto ahead = static_cast<unsigned>((host - own + hosts) % hosts);
    const auto behind = static_cast<unsigned>(hosts) - ahead;
    const bool far = std::has_single_bit(ahead) || std::has_single_bit(behind);
    if (host != own && (all_are_connected(hosts) || far)) others.push_back(host);
  }
  return others;
}

Heartbeats::Heartbeats(Layout layout, int own_host, std::vector<Connection> connections,
                       std::vector<Line> lines, const TimeSource& time)
    : layout_(std::move(layout)),
      own_host_(own_host),
      connections_(std::move(connections)),
      lines_(std::move(lines)),
      time_(time) {}

Heartbeats::~Heartbeats() {
  for (const Connection& connection : connections_) {
    if (connection.link) connection.link->say_goodbye();
  }
}

void Heartbeats::tell(const FailureReport& failure) noexcept {
  for (const Connection& connection : connections_) {
    if (connection.link) connection.link->tell(failure);
  }
}

/** Who kills all processes of a host needs a moment for it. Those that left before may live on, and
 * those that lost their leader may have told that, and ended. */
void Heartbeats::look_at_end(Connection& connection, const HasLeft& has_left,
                             std::vector<int>& lost) {
  const std::span<const int> ranks = layout_.ranks_of(connection.host);
  const auto now = time_.now();
  if (!connection.ended) {
    connection.ended = now;
    ended_.push_back(ranks.front());
  }
  const bool all = ranks.size() == 1 || connection.link->all_have_ended();
  if (all && !connection.all_ended) connection.all_ended = now;
  const auto last_end = connection.all_ended.value_or(*connection.ended);
  if (ranks.size() > 1 && now - last_end < (all ? kToBeHeard : kForTheRest)) return;
  lost.push_back(ranks.front());
  for (const int rank : ranks.subspan(1)) {
    if (!all || has_left(rank)) continue;
    lost.push_back(rank);
    ended_.push_back(rank);
  }
  connection.link.reset();
}

void Heartbeats::look_at_answers() {
  for (Line& line : lines_) {
    if (!line.pinged || line.answered || !line.line->has_answered()) continue;
    line.answered = true;
    line.took = time_.now() - *line.pinged;
  }
}

bool Heartbeats::knows_silent() const {
  if (!timed_out_) return false;
  return all_are_connected(layout_.host_count()) ||
         time_.now() - *timed_out_ >= kLongestToAcknowledge;
}

std::chrono::milliseconds Heartbeats::longest_silence(const Line& line) const {
  return kMissed + sign_of_life_after(own_host_, line.host, layout_.host_count());
}

std::optional<Heartbeats::Found> Heartbeats::look(const HasLeft& has_left) {
  look_at_answers();
  using State = HostConnection::News::State;
  std::optional<Found> found;
  std::vector<int> ended;
  bool timed_out = false;
  for (Connection& connection : connections_) {
    if (!connection.link) continue;
    if (!connection.ended) {
      const HostConnection::News news = connection.link->receive();
      connection.goodbye = connection.goodbye || news.goodbye;
      if (news.failure) found = {*news.failure, true};
      if (news.state == State::open) continue;
      if (news.state == State::timed_out) {
        timed_out = true;
        for (Line& line : lines_) line.timed_out = line.timed_out || line.host == connection.host;
      }
      if (news.state == State::timed_out || connection.goodbye) {
        connection.link.reset();
        continue;
      }
    }
    look_at_end(connection, has_left, ended);
  }
  if (timed_out && !timed_out_) {
    if (!all_are_connected(layout_.host_count())) ping();
    timed_out_ = time_.now();
  }
  if (found) return found;  // who tells of one may end right afterwards
  const bool some_are_silent = knows_silent();
  if (ended.empty() && !some_are_silent) return found;
  Loss loss{ended, ended.size() > 1 ? "their processes have ended" : "its process has ended"};
  if (some_are_silent) {
    timed_out_.reset();
    loss = with(loss_of_hosts(layout_, unreachable()), loss);
  }
  const Ended are_ended = some_are_silent ? Ended::unknown : Ended::yes;
  if (!loss.ranks.empty()) found.emplace().failure.set_lost(loss.ranks, loss.reason, are_ended);
  return found;
}

void Heartbeats::ping() noexcept {
  look_at_answers();
  for (Line& line : lines_) {
    // A byte that is not acknowledged yet keeps its time, or who is asked again would know nothing.
    if (line.pinged && !line.line->has_answered()) continue;
    line.pinged.reset();
    line.answered = false;
    if (line.line->ping()) line.pinged = time_.now();
  }
}

std::vector<int> Heartbeats::unreachable() const {
  std::vector<int> hosts;
  for (const Line& line : lines_) {
    const auto enough = std::clamp<TimeSource::Clock::duration>(2 * line.took, kToAcknowledge,
                                                                kLongestToAcknowledge);
    const bool had_time = line.pinged && time_.now() - *line.pinged >= enough;
    const bool silent = line.timed_out || line.line->silence() > longest_silence(line) ||
                        (had_time && !line.line->has_answered());
    if (silent) hosts.push_back(line.host);
  }
  const auto open = std::count_if(lines_.begin(), lines_.end(),
                                  [](const Line& line) { return !line.line->has_ended(); });
  if (hosts.size() > 1 && std::ssize(hosts) == open) {  // this host's own cable
    hosts.clear();
    for (int host = 0; host < layout_.host_count(); ++host) {
      if (host != own_host_) hosts.push_back(host);
    }
  }
  return hosts;
}

}  // namespace tutti
