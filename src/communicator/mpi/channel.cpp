// Posts messages in pieces, tests them to the deadline, and finds out who is to blame.
#include "communicator/mpi/channel.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "communicator/deadline.hpp"
#include "communicator/log.hpp"
#include "communicator/mpi/lifecycle.hpp"
#include "communicator/mpi/patience.hpp"
#include "communicator/text.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::mpi {
namespace {

constexpr int kTags = 4;  // of a context: one for each Traffic, one for control messages
// MPI counts in int. Smaller pieces show earlier that a slow transfer goes on.
constexpr std::int64_t kPiece = 16 << 20;

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
      watch_(*session_, members_, rank_, first_tag_ + kTags - 1) {}

/** Channels that this process has left, and others have not. */
class Channel::Left {
 public:
  /** Never destroyed: it is used at exit. */
  static Left& instance() {
    static Left& only = *new Left;
    return only;
  }

  void add(std::unique_ptr<Channel> channel) {
    const std::lock_guard lock(mutex_);
    channels_.push_back(std::move(channel));
    free_those_all_have_left();
  }

 private:
  /** MPI is initialised by now, so this exit handler runs before the one that finalises it. */
  Left() {
    std::atexit([] { instance().wait_at_exit(); });
  }

  void wait_at_exit() noexcept {
    if (process_ != ::getpid()) return;
    const std::lock_guard lock(mutex_);
    for (Deadline deadline(kAtExit); !deadline.expired();) {
      free_those_all_have_left();
      if (channels_.empty()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
    Left::instance().add(std::move(channel));
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void Channel::lose(std::vector<int> ranks, const std::string& reason) {
  announce_lost(ranks, reason);
  poll({});  // throws what all members throw, which may be an earlier loss
  throw PeerLost(std::move(ranks), reason);
}

void Channel::investigate(std::span<const int> suspects, const std::function<bool()>& over) {
  Watch::Inquiry inquiry(watch_, suspects);
  while (!over()) {
    poll(suspects);
    if (idle_) idle_();
    if (auto verdict = inquiry.verdict()) {
      std::string reason = "did not answer within " + seconds_text(timeout_);
      if (verdict->all_answered) reason += "; no rank has stopped, they wait for each other";
      lose(std::move(verdict->ranks), reason);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// --- Batch --------------------------------------------------------------------------------------

Channel::Batch::~Batch() {
  if (!requests_.empty()) abandon();
}

template <class Post>
void Channel::Batch::post(std::int64_t bytes, Peer peer, const Post& post_piece) {
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = post_piece(begin, static_cast<int>(std::min(kPiece, bytes - begin)), &request);
    if (code != MPI_SUCCESS) {
      channel_.lose({peer.rank}, "MPI cannot reach it: " + describe_error(code));
    }
    requests_.push_back(request);
    peers_.push_back(peer);
  }
}

void Channel::Batch::send(const void* data, std::int64_t bytes, int destination) {
  const int to = channel_.members_[static_cast<std::size_t>(destination)];
  if (traffic_ == Traffic::collective) channel_.bytes_sent_ += bytes;
  post(bytes, {destination, false}, [&](std::int64_t begin, int length, MPI_Request* request) {
    return MPI_Isend(static_cast<const std::byte*>(data) + begin, length, MPI_BYTE, to,
                     channel_.tag(traffic_), channel_.session_->comm(), request);
  });
}

void Channel::Batch::recv(void* data, std::int64_t bytes, int source) {
  const int from = channel_.members_[static_cast<std::size_t>(source)];
  post(bytes, {source, true}, [&](std::int64_t begin, int length, MPI_Request* request) {
    return MPI_Irecv(static_cast<std::byte*>(data) + begin, length, MPI_BYTE, from,
                     channel_.tag(traffic_), channel_.session_->comm(), request);
  });
}

void Channel::Batch::wait() {
  Patience patience;
  Deadline deadline(channel_.timeout_);
  bool seen_waiting = false;
  std::optional<Deadline> last_words;  // of those who left: their messages may be under way
  while (!requests_.empty()) {
    const bool moved = test();
    if (moved) {
      patience.renew();
      deadline = Deadline(channel_.timeout_);
      last_words.reset();
    }
    const bool long_wait = !moved && patience.rest();
    if (!long_wait && !channel_.watch_.is_due()) continue;
    seen_waiting = true;
    InterruptCheck::poll();
    channel_.poll(awaited());
    if (channel_.idle_) channel_.idle_();
    const RecycledVector<int> leavers = channel_.watch_.leavers(awaited());
    if (!leavers.empty()) {
      if (!last_words) last_words.emplace(kLastWords);
      if (!last_words->expired() || test()) continue;
      channel_.lose({leavers.begin(), leavers.end()}, "it has destroyed its communicator");
    }
    if (!deadline.expired()) continue;
    channel_.investigate(awaited(), [this] { return test(); });
    deadline = Deadline(channel_.timeout_);
  }
  if (seen_waiting) channel_.watch_.forget();
}

/** Takes out the requests that are done. Whether there were any. */
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
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[left] = requests_[i];
    peers_[left++] = peers_[i];
  }
  requests_.resize(left);
  peers_.resize(left);
  if (!failed.empty()) channel_.lose(failed, "a message failed: " + error);
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
