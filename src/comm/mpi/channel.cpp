// Posts messages in pieces, tests them to the deadline, and finds out who is to blame.
#include "comm/mpi/channel.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <mutex>
#include <optional>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/mpi/inquiry.hpp"
#include "comm/mpi/lifecycle.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTags = 4;  // of a context: one for each Traffic, one for control messages
// MPI takes messages that nobody has received yet, as many as it has memory for. Over a slow wire
// they would be under way for longer than a deadline, and what comes behind them: so of so many
// bytes, the last message is sent in a way that ends when its receiver takes it.
constexpr std::int64_t kMostUnconfirmed = 256 << 10;

int first_tag(const Session& session, int context) {
  const int contexts = (session.last_tag() - kTags + 1) / kTags + 1;
  if (context < 0 || context >= contexts) {
    throw Error("no tags for communicator number " + std::to_string(context) +
                " of an MPI session: MPI's largest tag leaves room for " +
                std::to_string(contexts));
  }
  return context * kTags;
}

int index_of(const std::vector<int>& members, int session_rank) {
  const auto self = std::find(members.begin(), members.end(), session_rank);
  if (self == members.end()) {
    throw InvalidArgument("rank " + std::to_string(session_rank) +
                          " of the session is not one of " + std::to_string(members.size()) +
                          " members");
  }
  return static_cast<int>(self - members.begin());
}

/** How long a process that exits waits for the others to leave, before it finalises MPI: that is
 * not to be done with messages on their way. */
constexpr std::chrono::seconds kAtExit{1};
// Messages of one rank may take several ways, and "I have left" the fastest of them.
constexpr std::chrono::milliseconds kLastWords{100};

}  // namespace

Channel::Channel(std::shared_ptr<Session> session, std::vector<int> members, int context,
                 std::chrono::milliseconds timeout)
    : session_(std::move(session)),
      members_(std::move(members)),
      first_tag_(first_tag(*session_, context)),
      timeout_(timeout),
      rank_(index_of(members_, session_->rank())),
      unconfirmed_(members_.size()),
      watch_(*session_, members_, rank_, first_tag_ + kTags - 1) {}

/** Channels that this process has left, and others have not. */
class Channel::Departed {
 public:
  /** Never destroyed: it is used at exit. */
  static Departed& instance() {
    static Departed& only = *new Departed;
    return only;
  }

  void add(std::unique_ptr<Channel> channel) {
    const std::lock_guard lock(mutex_);
    channels_.push_back(std::move(channel));
    free_those_all_have_left();
  }

 private:
  /** MPI is initialised by now, so this exit handler runs before the one that finalises it. */
  Departed() {
    std::atexit([] { instance().wait_at_exit(); });
  }

  void wait_at_exit() noexcept {
    if (process_ != ::getpid()) return;
    const std::lock_guard lock(mutex_);
    const WaitPolicy policy{.nap = std::chrono::milliseconds(1), .interruptible = false};
    for (Waiter waiter(policy, kAtExit); !waiter.expired(); waiter.pause()) {
      free_those_all_have_left();
      if (channels_.empty()) return;
    }
  }

  void free_those_all_have_left() noexcept {
    std::erase_if(channels_, [](const auto& one) { return one->watch_.all_have_left(); });
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::list<std::unique_ptr<Channel>> channels_;
};

void Channel::leave(std::unique_ptr<Channel> channel) noexcept {
  if (!channel->session_->may_call()) return;  // a forked child cannot even take a mutex
  channel->set_idle({});
  channel->scratch_ = {};
  channel->watch_.leave();
  try {
    Departed::instance().add(std::move(channel));
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void Channel::lose(std::vector<int> ranks, const std::string& reason) {
  announce_lost(ranks, reason);
  poll({});  // throws what all members throw, which may be an earlier loss
  throw PeerLost(std::move(ranks), reason);
}

void Channel::set_hosts(const Layout& layout) {
  std::unique_ptr<Heartbeats> heartbeats;
  if (layout.local_rank_of(rank_) == 0) heartbeats = Heartbeats::connect(*this, layout);
  watch_.set_hosts(layout, std::move(heartbeats));
}

bool Channel::is_to_be_confirmed(std::int64_t bytes, int destination) {
  auto& unconfirmed = unconfirmed_[static_cast<std::size_t>(destination)];
  if (unconfirmed.fetch_add(bytes, std::memory_order_relaxed) + bytes < kMostUnconfirmed) {
    return false;
  }
  unconfirmed.store(0, std::memory_order_relaxed);
  return true;
}

void Channel::look_around(std::span<const int> waiting_for) {
  poll(waiting_for);
  if (idle_) idle_();
}

void Channel::investigate(std::span<const int> suspects, std::chrono::milliseconds overdue) {
  Inquiry inquiry(watch_, suspects, timeout_, Clock::now() - overdue);
  const WaitPolicy policy{.nap = std::chrono::milliseconds(1)};
  for (Waiter waiter(policy);; waiter.pause()) {
    look_around(suspects);
    if (const auto verdict = inquiry.verdict()) {
      if (!verdict->loss.ranks.empty()) lose(verdict->loss.ranks, verdict->loss.reason);
      return;
    }
  }
}

std::function<void()> Channel::investigation(std::span<const int> suspects) {
  const auto passed = Clock::now() + inquiry_lead(timeout_);
  const auto inquiry = std::make_shared<std::optional<Inquiry>>();
  const auto begin = [this, inquiry, passed,
                      ranks = std::vector(suspects.begin(), suspects.end())] {
    inquiry->emplace(watch_, ranks, timeout_, passed);
  };
  begin();
  return [this, inquiry, begin] {
    const auto verdict = (*inquiry)->verdict();
    if (!verdict) return;
    if (!verdict->loss.ranks.empty()) lose(verdict->loss.ranks, verdict->loss.reason);
    begin();
  };
}

// --- Batch --------------------------------------------------------------------------------------

Channel::Batch::~Batch() {
  if (!requests_.empty()) abandon();
}

void Channel::Batch::begin(std::byte* data, std::int64_t bytes, Peer peer) {
  Rest rest{data, bytes};
  if (bytes > kPiece * kUnderWay) peer.message = static_cast<std::int32_t>(rests_.size());
  for (std::int64_t piece = 0; piece < kUnderWay && rest.bytes > 0; ++piece) post(rest, peer);
  if (peer.message >= 0) rests_.push_back(rest);
}

/** Posts the next piece. */
void Channel::Batch::post(Rest& rest, Peer peer) {
  const auto length = static_cast<int>(std::min(kPiece, rest.bytes));
  const int session_rank = channel_.members_[static_cast<std::size_t>(peer.rank)];
  const int tag = channel_.tag(traffic_);
  MPI_Comm comm = channel_.session_->comm();
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_SUCCESS;
  if (peer.receives) {
    code = MPI_Irecv(rest.data, length, MPI_BYTE, session_rank, tag, comm, &request);
  } else if (channel_.is_to_be_confirmed(length, peer.rank)) {
    code = MPI_Issend(rest.data, length, MPI_BYTE, session_rank, tag, comm, &request);
  } else {
    code = MPI_Isend(rest.data, length, MPI_BYTE, session_rank, tag, comm, &request);
  }
  if (code != MPI_SUCCESS) {
    channel_.lose({peer.rank}, "MPI cannot reach it: " + describe_error(code));
  }
  requests_.push_back(request);
  peers_.push_back(peer);
  rest.data += length;
  rest.bytes -= length;
}

void Channel::Batch::send(const void* data, std::int64_t bytes, int destination) {
  if (traffic_ == Traffic::collective) channel_.bytes_sent_ += bytes;
  // MPI's own calls take what they only read as const.
  begin(static_cast<std::byte*>(const_cast<void*>(data)), bytes, {destination, false});
}

void Channel::Batch::recv(void* data, std::int64_t bytes, int source) {
  begin(static_cast<std::byte*>(data), bytes, {source, true});
}

void Channel::Batch::wait(std::chrono::milliseconds timeout) {
  Waiter waiter(kMpiWait, timeout);
  WaitGraph& graph = channel_.session_->wait_graph();
  const auto lead = inquiry_lead(channel_.timeout_);
  std::optional<Inquiry> inquiry;
  auto passed = Clock::time_point::max();  // when the deadline passes first
  const auto start_anew = [&](std::chrono::milliseconds time) {
    waiter.restart(time);
    inquiry.reset();
  };
  bool seen_waiting = false;
  std::optional<Deadline> last_words;  // of those who left: their messages may be under way
  const auto test_and_note = [&] {
    if (!test()) return false;
    start_anew(timeout);
    graph.progressed();
    passed = Clock::time_point::max();
    last_words.reset();
    return true;
  };
  while (!requests_.empty()) {
    const bool moved = test_and_note();
    const bool long_wait = !moved && waiter.pause();
    if (!long_wait && !graph.is_due()) continue;
    seen_waiting = true;
    channel_.look_around(awaited());
    const RecycledVector<int> leavers = channel_.watch_.leavers(awaited());
    if (!leavers.empty()) {
      if (!last_words) last_words.emplace(kLastWords);
      if (!last_words->expired() || test_and_note()) continue;
      channel_.lose({leavers.begin(), leavers.end()}, "it has destroyed its communicator");
    }
    const bool is_over = waiter.expired();
    if (!inquiry && waiter.expires_within(lead)) {
      passed = std::min(passed, Clock::now() + lead);
      inquiry.emplace(channel_.watch_, awaited(), channel_.timeout_, passed);
    }
    if (!is_over) continue;
    if (auto verdict = inquiry->verdict()) {
      if (!verdict->loss.ranks.empty()) channel_.lose(verdict->loss.ranks, verdict->loss.reason);
      start_anew(timeout - verdict->idle);
    }
  }
  if (seen_waiting) graph.forget();
}

/** Takes out the requests that are done, and posts what comes behind them. Whether there were
 * any. */
bool Channel::Batch::test() {
  const auto count = static_cast<int>(requests_.size());
  done_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int found = 0;
  const int code = MPI_Testsome(count, requests_.data(), &found, done_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
  if (found == MPI_UNDEFINED || found == 0) return false;

  std::vector<int> failed;
  std::string error;
  for (int i = 0; i < found; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (code != MPI_ERR_IN_STATUS || statuses_[at].MPI_ERROR == MPI_SUCCESS) continue;
    failed.push_back(peers_[static_cast<std::size_t>(done_[at])].rank);
    error = describe_error(statuses_[at].MPI_ERROR);
  }
  std::size_t left = 0;
  RecycledVector<Peer> following;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) {
      if (peers_[i].message >= 0) following.push_back(peers_[i]);
      continue;
    }
    requests_[left] = requests_[i];
    peers_[left++] = peers_[i];
  }
  requests_.resize(left);
  peers_.resize(left);
  if (!failed.empty()) channel_.lose(failed, "a message failed: " + error);
  for (const Peer& peer : following) {
    Rest& rest = rests_[static_cast<std::size_t>(peer.message)];
    if (rest.bytes > 0) post(rest, peer);
  }
  return true;
}

RecycledVector<int> Channel::Batch::awaited() const {
  RecycledVector<int> ranks;
  for (const Peer& peer : peers_) ranks.push_back(peer.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Channel::Batch::abandon() noexcept {
  channel_.fail();
  if (channel_.session_->may_call()) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (!peers_[i].receives) continue;
      // A send cannot be cancelled, nor a receive whose message has begun to arrive.
      int done = 0;
      if (MPI_Cancel(&requests_[i]) == MPI_SUCCESS) {
        MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
      }
    }
  }
  for (auto& memory : kept_) leave_to_mpi(std::move(memory));
}

}  // namespace tutti::mpi
