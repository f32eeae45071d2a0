// Notes who waits, and answers for this process.
#include "comm/mpi/wait_graph.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tutti::mpi {
namespace {

constexpr std::chrono::milliseconds kFreshFor{1};
constexpr std::chrono::milliseconds kOverdue{10};
// Waits inside a host poll every 50 ms; a thread that was not seen for so long waits no more.
constexpr std::chrono::milliseconds kStale{500};
constexpr std::size_t kMostThreads = 16;  // more of them cost memory
constexpr std::chrono::hours kLongAgo{10'000};

std::chrono::milliseconds to_milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

}  // namespace

WaitGraph::WaitGraph(Session& session, int tag)
    : session_(session),
      messenger_(session, tag),
      last_number_(static_cast<std::uint32_t>(Clock::now().time_since_epoch().count())) {
  waiters_.reserve(kMostThreads);
  calls_.reserve(kMostThreads);
  last_call_.progress = Clock::now() - kLongAgo;
}

// --- Waiting ------------------------------------------------------------------------------------

void WaitGraph::poll(std::span<const int> ranks, std::span<const int> members) {
  if (!session_.may_call()) return;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const auto self = std::this_thread::get_id();
  auto waiter = std::find_if(waiters_.begin(), waiters_.end(),
                             [&](const Waiter& entry) { return entry.thread == self; });
  if (waiter == waiters_.end()) waiter = waiters_.insert(waiter, {self, {}, now - kStale});
  if (now - waiter->seen < kFreshFor) return;
  waiter->seen = now;
  last_poll_ = now;
  waiter->ranks.clear();
  for (const int rank : ranks) waiter->ranks.push_back(members[static_cast<std::size_t>(rank)]);
  std::erase_if(waiters_, [&](const Waiter& entry) { return now - entry.seen > kStale; });
  handle_messages();
}

bool WaitGraph::is_due() const noexcept { return Clock::now() - last_poll_.load() > kOverdue; }

void WaitGraph::forget() noexcept {
  const std::lock_guard lock(mutex_);
  const auto self = std::this_thread::get_id();
  std::erase_if(waiters_, [&](const Waiter& entry) { return entry.thread == self; });
}

bool WaitGraph::drain() {
  const std::lock_guard lock(mutex_);
  handle_messages();
  return !messenger_.is_sending([](int) { return true; });
}

// --- Calls --------------------------------------------------------------------------------------

WaitGraph::CallScope::CallScope(WaitGraph& graph) : graph_(graph) {
  const std::lock_guard lock(graph_.mutex_);
  const auto self = std::this_thread::get_id();
  outermost_ = std::none_of(graph_.calls_.begin(), graph_.calls_.end(),
                            [&](const CallTimes& call) { return call.thread == self; });
  if (outermost_) graph_.calls_.push_back({self, Clock::now(), Clock::now() - kLongAgo});
}

WaitGraph::CallScope::~CallScope() {
  if (!outermost_) return;
  const std::lock_guard lock(graph_.mutex_);
  const auto self = std::this_thread::get_id();
  const auto own = std::find_if(graph_.calls_.begin(), graph_.calls_.end(),
                                [&](const CallTimes& call) { return call.thread == self; });
  if (own->progress >= graph_.last_call_.progress) graph_.last_call_ = *own;
  graph_.calls_.erase(own);
}

void WaitGraph::progressed() noexcept {
  const std::lock_guard lock(mutex_);
  const auto self = std::this_thread::get_id();
  for (CallTimes& call : calls_) {
    if (call.thread == self) call.progress = Clock::now();
  }
}

// --- Questions ----------------------------------------------------------------------------------

void WaitGraph::add(Asker& asker, Clock::time_point passed) {
  const std::lock_guard lock(mutex_);
  inquiries_.push_back({++last_number_, &asker, passed});
}

void WaitGraph::remove(const Asker& asker) {
  const std::lock_guard lock(mutex_);
  std::erase_if(inquiries_, [&](const Inquiry& one) { return one.asker == &asker; });
}

void WaitGraph::add(Lookout& lookout) {
  const std::lock_guard lock(mutex_);
  lookouts_.push_back(&lookout);
}

void WaitGraph::remove(const Lookout& lookout) {
  const std::lock_guard lock(mutex_);
  std::erase(lookouts_, &lookout);
}

void WaitGraph::ask(const Asker& asker, std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  for (const Inquiry& inquiry : inquiries_) {
    if (inquiry.asker == &asker) ask(inquiry, ranks);
  }
}

void WaitGraph::ask(const Inquiry& inquiry, std::span<const int> ranks) {
  const Question question{inquiry.number, to_milliseconds(Clock::now() - inquiry.passed).count()};
  for (const int rank : ranks) messenger_.send(question, rank);
}

void WaitGraph::handle_messages() {
  messenger_.flush();
  messenger_.receive([this](const ControlMessage& message, int source) {
    if (const auto* question = std::get_if<Question>(&message)) return answer(*question, source);
    const auto* const answer = std::get_if<Answer>(&message);
    if (answer == nullptr) return;
    for (const Inquiry& inquiry : inquiries_) {
      if (inquiry.number == answer->number) ask(inquiry, inquiry.asker->hear(source, *answer));
    }
  });
}

void WaitGraph::answer(const Question& question, int rank) {
  RecycledVector<int> ranks;
  for (const Waiter& waiter : waiters_) {
    ranks.insert(ranks.end(), waiter.ranks.begin(), waiter.ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<int> unreachable;
  for (Lookout* const lookout : lookouts_) {
    for (const int one : lookout->ranks_out_of_reach()) unreachable.push_back(one);
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
  const std::size_t silent = std::min(unreachable.size(), Answer::kMost);
  const std::size_t awaited = std::min(ranks.size(), Answer::kMost - silent);
  std::copy_n(ranks.begin(), awaited, answer.entries.begin());
  std::copy_n(unreachable.begin(), silent,
              answer.entries.begin() + static_cast<std::ptrdiff_t>(awaited));
  answer.awaited_count = static_cast<std::int32_t>(awaited);
  answer.unreachable_count = static_cast<std::int32_t>(silent);
  messenger_.send(answer, rank);
}

}  // namespace tutti::mpi
