// Asks, answers, and spreads the news of a loss.
#include "communicator/mpi/watch.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "communicator/log.hpp"
#include "communicator/mpi/lifecycle.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

constexpr std::chrono::milliseconds kBetweenPolls{1};
constexpr std::chrono::milliseconds kOverdue{10};
constexpr std::chrono::milliseconds kForAnAnswer{1500};
constexpr std::chrono::milliseconds kForTheNews{250};
// Waits inside a host poll every 50 ms; a thread that was not seen for so long waits no more.
constexpr std::chrono::milliseconds kStale{500};
constexpr std::size_t kMostWaiters = 16;  // threads; more of them cost memory

}  // namespace

void Watch::Message::set_ranks(std::span<const int> values) {
  const std::size_t count = std::min(values.size(), ranks.size());
  std::copy_n(values.begin(), count, ranks.begin());
  rank_count = static_cast<std::int32_t>(count);
}

void Watch::Message::set_text(std::string_view value) {
  const std::size_t length = std::min(value.size(), text.size());
  std::copy_n(value.begin(), length, text.begin());
  text_length = static_cast<std::int32_t>(length);
}

std::span<const std::int32_t> Watch::Message::rank_list() const {
  return std::span(ranks).first(static_cast<std::size_t>(rank_count));
}

std::string_view Watch::Message::text_value() const {
  return {text.data(), static_cast<std::size_t>(text_length)};
}

Watch::Watch(Session& session, const std::vector<int>& members, int rank, int tag)
    : session_(session), members_(members), rank_(rank), tag_(tag) {
  waiters_.reserve(kMostWaiters);
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
  throw_failure();
}

void Watch::throw_failure() const {
  if (!failure_) return;
  const std::string text(failure_->text_value());
  if (failure_->kind == Message::Kind::mismatch) throw MismatchError(text);
  const auto ranks = failure_->rank_list();
  throw PeerLost({ranks.begin(), ranks.end()}, text);
}

bool Watch::is_due() const noexcept { return Clock::now() - last_poll_.load() > kOverdue; }

void Watch::forget() noexcept {
  const std::lock_guard lock(mutex_);
  const auto self = std::this_thread::get_id();
  std::erase_if(waiters_, [&](const Waiter& entry) { return entry.thread == self; });
}

// --- Messages -----------------------------------------------------------------------------------

/** A message that MPI refuses to send is as good as one that nobody answers. */
void Watch::send(const std::shared_ptr<Message>& message, int destination) {
  Pending pending{MPI_REQUEST_NULL, message, destination};
  const int to = members_[static_cast<std::size_t>(destination)];
  const int code = MPI_Isend(message.get(), sizeof(Message), MPI_BYTE, to, tag_, session_.comm(),
                             &pending.request);
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
    pending.message = std::make_shared<Message>();
    pending.peer = rank_of(status.MPI_SOURCE);
    check(MPI_Imrecv(pending.message.get(), sizeof(Message), MPI_BYTE, &matched, &pending.request),
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

void Watch::handle(const Message& message, int source) {
  switch (message.kind) {
    case Message::Kind::inquiry:
      answer(message.number, source);
      break;
    case Message::Kind::answer:
      for (Inquiry* inquiry : inquiries_) {
        if (inquiry->number_ == message.number) inquiry->hear(source, message.rank_list());
      }
      break;
    case Message::Kind::left:
      leavers_.push_back(source);
      break;
    case Message::Kind::lost:
    case Message::Kind::mismatch:
      if (failure_) break;
      failure_ = std::make_shared<Message>(message);
      session_.fail();
      break;
  }
}

void Watch::answer(std::uint32_t number, int destination) {
  std::vector<int> ranks;
  for (const Waiter& waiter : waiters_) {
    ranks.insert(ranks.end(), waiter.ranks.begin(), waiter.ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  auto message = std::make_shared<Message>();
  message->kind = Message::Kind::answer;
  message->number = number;
  message->set_ranks(ranks);
  send(message, destination);
}

void Watch::leave() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failure_ || !session_.may_call()) return;
    const auto message = std::make_shared<Message>();
    message->kind = Message::Kind::left;
    for (int member = 0; member < static_cast<int>(members_.size()); ++member) {
      if (member != rank_) send(message, member);
    }
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

void Watch::announce_lost(std::span<const int> ranks, std::string_view reason) noexcept {
  const auto message = std::make_shared<Message>();
  message->kind = Message::Kind::lost;
  message->set_ranks(ranks);
  message->set_text(reason);
  announce(message);
}

void Watch::announce_mismatch(std::string_view text) noexcept {
  const auto message = std::make_shared<Message>();
  message->kind = Message::Kind::mismatch;
  message->set_text(text);
  announce(message);
}

void Watch::announce(const std::shared_ptr<Message>& message) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = message;
    session_.fail();
    if (!session_.may_call()) return;
    for (int member = 0; member < static_cast<int>(members_.size()); ++member) {
      if (member != rank_) send(message, member);
    }
    // Nobody may call MPI after this, and a message to a new peer needs calls to get out.
    const auto lost = message->rank_list();
    const auto is_urgent = [lost](const Pending& pending) {
      return std::find(lost.begin(), lost.end(), pending.peer) == lost.end();
    };
    for (Deadline deadline(kForTheNews); !deadline.expired();) {
      flush();
      if (std::none_of(outgoing_.begin(), outgoing_.end(), is_urgent)) break;
      std::this_thread::sleep_for(kBetweenPolls);
    }
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

// --- Inquiries ----------------------------------------------------------------------------------

Watch::Inquiry::Inquiry(Watch& watch, std::span<const int> awaited)
    : watch_(watch), awaited_(awaited.begin(), awaited.end()) {
  const std::lock_guard lock(watch_.mutex_);
  number_ = ++watch_.last_number_;
  for (const int rank : awaited_) ask(rank);
  watch_.inquiries_.push_back(this);
}

Watch::Inquiry::~Inquiry() {
  const std::lock_guard lock(watch_.mutex_);
  std::erase(watch_.inquiries_, this);
}

void Watch::Inquiry::ask(int rank) {
  const auto known = [rank](const Suspect& suspect) { return suspect.rank == rank; };
  if (rank == watch_.rank_ || std::any_of(suspects_.begin(), suspects_.end(), known)) return;
  auto message = std::make_shared<Message>();
  message->kind = Message::Kind::inquiry;
  message->number = number_;
  watch_.send(message, rank);
  suspects_.push_back({rank, Deadline(kForAnAnswer)});
}

void Watch::Inquiry::hear(int rank, std::span<const std::int32_t> waits_for) {
  for (Suspect& suspect : suspects_) {
    if (suspect.rank == rank) suspect.answered = true;
  }
  for (const int next : waits_for) ask(next);
}

std::optional<Watch::Verdict> Watch::Inquiry::verdict() {
  const std::lock_guard lock(watch_.mutex_);
  bool patient = false;
  bool undecided = false;
  Verdict verdict;
  for (Suspect& suspect : suspects_) {
    const bool in_time = !suspect.patience.expired();
    patient = patient || in_time;
    if (suspect.answered) continue;
    undecided = undecided || in_time;
    verdict.ranks.push_back(suspect.rank);
  }
  if (undecided) return std::nullopt;
  if (!verdict.ranks.empty()) return verdict;
  // Everybody is alive: what they do may still end the wait, so the full time is given.
  if (patient) return std::nullopt;
  return Verdict{awaited_, true};
}

}  // namespace tutti::mpi
