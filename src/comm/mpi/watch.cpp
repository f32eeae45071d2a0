// Answers questions, and spreads the news of a loss.
#include "comm/mpi/watch.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/log.hpp"
#include "comm/mpi/lifecycle.hpp"

namespace tutti::mpi {
namespace {

constexpr std::chrono::milliseconds kBetweenPolls{1};
constexpr std::chrono::milliseconds kOverdue{10};
constexpr std::chrono::milliseconds kForTheNews{250};
// Waits inside a host poll every 50 ms; a thread that was not seen for so long waits no more.
constexpr std::chrono::milliseconds kStale{500};
constexpr std::size_t kMostThreads = 16;  // more of them cost memory
constexpr std::chrono::hours kLongAgo{10'000};
constexpr std::chrono::milliseconds kLookInterval{100};  // at connections to other hosts

std::chrono::milliseconds to_milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

}  // namespace

Watch::Watch(Session& session, const std::vector<int>& members, int rank, int tag)
    : session_(session), members_(members), rank_(rank), tag_(tag) {
  waiters_.reserve(kMostThreads);
  calls_.reserve(kMostThreads);
  last_call_.progress = Clock::now() - kLongAgo;
}

Watch::~Watch() {
  try {
    if (session_.may_call()) flush();
    if (!outgoing_.empty()) leave_to_mpi(std::make_shared<Pendings>(std::move(outgoing_)));
    if (!incoming_.empty()) leave_to_mpi(std::make_shared<Pendings>(std::move(incoming_)));
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void Watch::set_hosts(const Layout& layout, std::unique_ptr<Heartbeats> heartbeats) {
  const std::lock_guard lock(mutex_);
  layout_ = layout;
  heartbeats_ = std::move(heartbeats);
}

int Watch::leader_of_host() const { return layout_->ranks_of(layout_->host_of(rank_)).front(); }

int Watch::rank_of(int session_rank) const {
  const auto member = std::find(members_.begin(), members_.end(), session_rank);
  return static_cast<int>(member - members_.begin());
}

// --- Waiting ------------------------------------------------------------------------------------

void Watch::poll(std::span<const int> waiting_for) {
  const std::lock_guard lock(mutex_);
  throw_failure();
  if (!session_.may_call()) return;
  const auto now = Clock::now();
  const auto self = std::this_thread::get_id();
  auto waiter = std::find_if(waiters_.begin(), waiters_.end(),
                             [&](const Waiter& entry) { return entry.thread == self; });
  if (waiter == waiters_.end()) {
    waiter = waiters_.insert(waiter, {self, {}, now - kStale});
  }
  if (now - waiter->seen < kBetweenPolls) return;
  waiter->seen = now;
  last_poll_ = now;
  waiter->ranks.assign(waiting_for.begin(), waiting_for.end());
  std::erase_if(waiters_, [&](const Waiter& entry) { return now - entry.seen > kStale; });
  flush();
  receive();
  look_after_hosts(now);
  throw_failure();
}

void Watch::look_after_hosts(Clock::time_point now) {
  if (failure_ || !heartbeats_ || now - last_look_ < kLookInterval) return;
  last_look_ = now;
  if (const auto failure = heartbeats_->look()) announce(*failure, Finder::self);
}

void Watch::throw_failure() const {
  if (failure_) failure_->raise();
}

bool Watch::is_due() const noexcept { return Clock::now() - last_poll_.load() > kOverdue; }

void Watch::forget() noexcept {
  const std::lock_guard lock(mutex_);
  const auto self = std::this_thread::get_id();
  std::erase_if(waiters_, [&](const Waiter& entry) { return entry.thread == self; });
}

// --- Calls --------------------------------------------------------------------------------------

Watch::Call::Call(Watch& watch) : watch_(watch) {
  const std::lock_guard lock(watch_.mutex_);
  const auto self = std::this_thread::get_id();
  outermost_ = std::none_of(watch_.calls_.begin(), watch_.calls_.end(),
                            [&](const CallTimes& call) { return call.thread == self; });
  if (outermost_) watch_.calls_.push_back({self, Clock::now(), Clock::now() - kLongAgo});
}

Watch::Call::~Call() {
  if (!outermost_) return;
  const std::lock_guard lock(watch_.mutex_);
  const auto self = std::this_thread::get_id();
  const auto own = std::find_if(watch_.calls_.begin(), watch_.calls_.end(),
                                [&](const CallTimes& call) { return call.thread == self; });
  if (own->progress >= watch_.last_call_.progress) watch_.last_call_ = *own;
  watch_.calls_.erase(own);
}

void Watch::progressed() noexcept {
  const std::lock_guard lock(mutex_);
  const auto self = std::this_thread::get_id();
  for (CallTimes& call : calls_) {
    if (call.thread == self) call.progress = Clock::now();
  }
}

// --- Messages -----------------------------------------------------------------------------------

/** A message that MPI refuses to send is as good as one that nobody answers. */
void Watch::send(const ControlMessage& message, int destination) {
  Pending pending{MPI_REQUEST_NULL, std::make_shared<ControlMessage>(message), destination};
  const int to = members_[static_cast<std::size_t>(destination)];
  const int code = MPI_Isend(pending.message.get(), sizeof(ControlMessage), MPI_BYTE, to, tag_,
                             session_.comm(), &pending.request);
  if (code == MPI_SUCCESS) outgoing_.push_back(std::move(pending));
}

/** Drops the messages that have left. */
void Watch::flush() noexcept {
  std::erase_if(outgoing_, [](Pending& pending) {
    int done = 0;
    return MPI_Test(&pending.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
}

void Watch::receive() {
  for (;;) {
    int found = 0;
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, tag_, session_.comm(), &found, &matched, &status),
          "MPI_Improbe");
    if (found == 0) break;
    Pending& pending = incoming_.emplace_back();
    pending.message = std::make_shared<ControlMessage>();
    pending.peer = rank_of(status.MPI_SOURCE);
    check(MPI_Imrecv(pending.message.get(), sizeof(ControlMessage), MPI_BYTE, &matched,
                     &pending.request),
          "MPI_Imrecv");
  }
  for (auto pending = incoming_.begin(); pending != incoming_.end();) {
    int done = 0;
    check(MPI_Test(&pending->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    const auto next = std::next(pending);
    if (done != 0) {
      handle(*pending->message, pending->peer);
      incoming_.erase(pending);
    }
    pending = next;
  }
}

void Watch::handle(const ControlMessage& message, int source) {
  if (const auto* question = std::get_if<Question>(&message)) {
    answer(*question, source);
  } else if (const auto* answer = std::get_if<Answer>(&message)) {
    for (Inquiry* inquiry : inquiries_) {
      if (inquiry->number_ == answer->number) inquiry->hear(source, *answer);
    }
  } else if (const auto* report = std::get_if<FailureReport>(&message)) {
    if (!failure_) fail(*report);
  } else {
    leavers_.push_back(source);
  }
}

void Watch::answer(const Question& question, int destination) {
  RecycledVector<int> ranks;
  for (const Waiter& waiter : waiters_) {
    ranks.insert(ranks.end(), waiter.ranks.begin(), waiter.ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<int> hosts;
  if (heartbeats_) {
    heartbeats_->ping();  // who asks will ask again
    hosts = heartbeats_->unreachable();
  }
  Answer answer;
  answer.number = question.number;
  const auto now = Clock::now();
  const auto passed = now - std::chrono::milliseconds(question.overdue);
  Clock::time_point progress = now - kLongAgo;
  Clock::time_point later = progress;
  const auto count = [&](const CallTimes& call) {
    Clock::time_point& last = call.begun <= passed ? progress : later;
    last = std::max(last, call.progress);
  };
  count(last_call_);
  for (const CallTimes& call : calls_) count(call);
  answer.idle = to_milliseconds(now - progress).count();
  answer.idle_later = to_milliseconds(now - later).count();
  const std::size_t host_count = std::min(hosts.size(), Answer::kMost);
  const std::size_t rank_count = std::min(ranks.size(), Answer::kMost - host_count);
  std::copy_n(ranks.begin(), rank_count, answer.entries.begin());
  std::copy_n(hosts.begin(), host_count,
              answer.entries.begin() + static_cast<std::ptrdiff_t>(rank_count));
  answer.rank_count = static_cast<std::int32_t>(rank_count);
  answer.host_count = static_cast<std::int32_t>(host_count);
  send(answer, destination);
}

// --- Leaving ------------------------------------------------------------------------------------

void Watch::send_to_all(const ControlMessage& message) {
  for (int member = 0; member < static_cast<int>(members_.size()); ++member) {
    if (member != rank_) send(message, member);
  }
}

void Watch::leave() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    heartbeats_.reset();
    if (!failure_ && session_.may_call()) send_to_all(Farewell());
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

bool Watch::all_have_left() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failure_ || !session_.may_call()) return true;
    flush();
    receive();
    return leavers_.size() + 1 == members_.size() && outgoing_.empty();
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
    session_.keep();
    return true;
  }
}

RecycledVector<int> Watch::leavers(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  RecycledVector<int> found;
  std::copy_if(leavers_.begin(), leavers_.end(), std::back_inserter(found), [&](int leaver) {
    return std::find(ranks.begin(), ranks.end(), leaver) != ranks.end();
  });
  return found;
}

// --- Failures -----------------------------------------------------------------------------------

void Watch::announce_lost(std::span<const int> ranks, std::string_view reason,
                          Finder finder) noexcept {
  FailureReport report{};
  report.set_lost(ranks, reason);
  try {
    const std::lock_guard lock(mutex_);
    announce(report, finder);
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void Watch::announce_mismatch(std::string_view text, Finder finder) noexcept {
  FailureReport report{};
  report.set_mismatch(text);
  try {
    const std::lock_guard lock(mutex_);
    announce(report, finder);
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

/** The first failure that is known here. */
void Watch::fail(const FailureReport& report) {
  failure_ = report;
  if (report.kind == FailureReport::Kind::mismatch) {
    session_.keep();
  } else {
    session_.fail();
  }
  if (heartbeats_) heartbeats_->tell(report);
}

void Watch::announce(const FailureReport& report, Finder finder) {
  if (failure_) return;
  fail(report);
  if (!session_.may_call()) return;
  send_to_all(report);
  if (finder == Finder::neighbour) return;
  // Nobody may call MPI after this, and a message to a new peer needs calls to get out.
  const auto lost = report.rank_list();
  const auto is_urgent = [lost](const Pending& pending) {
    return std::find(lost.begin(), lost.end(), pending.peer) == lost.end();
  };
  for (Deadline deadline(kForTheNews); !deadline.expired();) {
    flush();
    if (std::none_of(outgoing_.begin(), outgoing_.end(), is_urgent)) break;
    std::this_thread::sleep_for(kBetweenPolls);
  }
}

}  // namespace tutti::mpi
