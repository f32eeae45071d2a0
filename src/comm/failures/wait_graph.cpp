// Hears questions and answers over all sessions of the process.
#include "comm/failures/wait_graph.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <utility>

#include "base/log.hpp"

namespace tutti {
namespace {

constexpr std::size_t kMostCalls = 16;  // at a time; more of them cost memory
constexpr std::chrono::hours kLongAgo{10'000};

std::chrono::milliseconds to_milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

/** The rank of a process; -1 if it has none. */
int rank_of(ProcessNumber process, const std::vector<ProcessNumber>& numbers) {
  const auto found = std::find(numbers.begin(), numbers.end(), process);
  return found == numbers.end() ? -1 : static_cast<int>(found - numbers.begin());
}

}  // namespace

/** A thread of a process that forks must not leave the child with a lock that nobody holds.
 * OwnWaits comes first, for its lock is taken under this one: what is set up last is done first. */
WaitGraph& WaitGraph::of_this_process() {
  static auto* const graph = [] {  // communicators of static objects may end later
    auto* const made = new WaitGraph(TimeSource::system(), OwnWaits::of_this_process());
    ::pthread_atfork([] { of_this_process().mutex_.lock(); },
                     [] { of_this_process().mutex_.unlock(); },
                     [] { of_this_process().mutex_.unlock(); });
    return made;
  }();
  return *graph;
}

WaitGraph::WaitGraph(const TimeSource& time, OwnWaits& waits)
    : time_(time), waits_(waits), last_number_(static_cast<std::uint32_t>(waits.number())) {
  calls_.reserve(kMostCalls);
  last_call_.progress = time_.now() - kLongAgo;
  waits_.set_correspondent(this);
}

// --- Sessions -----------------------------------------------------------------------------------

void WaitGraph::add(ControlNetwork& session, int tag) {
  const ProcessNumber self = waits_.number();
  const std::lock_guard lock(mutex_);
  Line& line = lines_.emplace_back(session, tag);
  for (int rank = 0; rank < session.size(); ++rank) {
    line.numbers.push_back(rank == session.rank() ? self : ++next_stranger_);
  }
}

bool WaitGraph::remove(const ControlNetwork& session) noexcept {
  const std::lock_guard lock(mutex_);
  bool used = false;
  std::erase_if(lines_, [&](const Line& line) {
    if (line.session != &session) return false;
    used = line.used;
    return true;
  });
  return used;
}

void WaitGraph::set_processes(const ControlNetwork& session, std::vector<ProcessNumber> numbers,
                              bool other_hosts) {
  const std::lock_guard lock(mutex_);
  Line& line = line_of(session);
  line.numbers = std::move(numbers);
  line.other_hosts = other_hosts;
}

std::vector<ProcessNumber> WaitGraph::numbers_of(const ControlNetwork& session,
                                                 std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  const std::vector<ProcessNumber>& all = line_of(session).numbers;
  std::vector<ProcessNumber> numbers;
  for (const int rank : ranks) numbers.push_back(all[static_cast<std::size_t>(rank)]);
  return numbers;
}

WaitGraph::Line& WaitGraph::line_of(const ControlNetwork& session) {
  return *std::find_if(lines_.begin(), lines_.end(),
                       [&](const Line& line) { return line.session == &session; });
}

// --- Waiting ------------------------------------------------------------------------------------

void WaitGraph::poll(ControlNetwork& session, std::span<const int> ranks,
                     std::span<const int> members) {
  if (!session.may_call()) return;
  const std::lock_guard lock(mutex_);
  const std::vector<ProcessNumber>& numbers = line_of(session).numbers;
  RecycledVector<ProcessNumber> processes;
  for (const int rank : ranks) {
    const int member = members[static_cast<std::size_t>(rank)];
    processes.push_back(numbers[static_cast<std::size_t>(member)]);
  }
  if (!waits_.enter(processes)) return;
  handle_messages(&session);
}

void WaitGraph::listen() {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // or else somebody does it
  if (lock) handle_messages(nullptr);
}

bool WaitGraph::drain(const ControlNetwork& session) {
  const std::lock_guard lock(mutex_);
  handle_messages(&session);
  return !line_of(session).messenger->is_sending([](int) { return true; });
}

// --- Calls --------------------------------------------------------------------------------------

WaitGraph::CallScope::CallScope(WaitGraph& graph) : graph_(graph) {
  const std::lock_guard lock(graph_.mutex_);
  const auto self = std::this_thread::get_id();
  outermost_ = std::none_of(graph_.calls_.begin(), graph_.calls_.end(),
                            [&](const CallTimes& call) { return call.thread == self; });
  const auto now = graph_.time_.now();
  if (outermost_) graph_.calls_.push_back({self, now, now - kLongAgo});
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
    if (call.thread == self) call.progress = time_.now();
  }
}

bool WaitGraph::has_calls() noexcept {
  const std::lock_guard lock(mutex_);
  return !calls_.empty();
}

// --- Questions ----------------------------------------------------------------------------------

void WaitGraph::add(Asker& asker, const ControlNetwork* session, Clock::time_point passed) {
  const std::lock_guard lock(mutex_);
  inquiries_.push_back({++last_number_, &asker, session, passed});
}

void WaitGraph::remove(const Asker& asker) {
  const std::lock_guard lock(mutex_);
  std::erase_if(inquiries_, [&](const Inquiry& one) { return one.asker == &asker; });
}

void WaitGraph::ask(const Asker& asker, std::span<const ProcessNumber> processes) {
  const std::lock_guard lock(mutex_);
  for (const Inquiry& inquiry : inquiries_) {
    if (inquiry.asker == &asker) ask(inquiry, processes);
  }
}

void WaitGraph::ask(const Inquiry& inquiry, std::span<const ProcessNumber> processes) {
  const Question question{inquiry.number, to_milliseconds(time_.now() - inquiry.passed).count()};
  for (const ProcessNumber process : processes) {
    if (!ask(inquiry, question, process)) inquiry.asker->cannot_ask(process);
  }
}

/** Over the asker's own session if it can be, or else over all others that this thread may use:
 * there may be some that the process has left. */
bool WaitGraph::ask(const Inquiry& inquiry, const Question& question, ProcessNumber process) {
  const auto send = [&](Line& line) {
    const int rank = rank_of(process, line.numbers);
    if (rank < 0 || line.broken) return false;
    line.messenger->send(question, rank);
    line.used = true;
    return true;
  };
  bool sent = false;
  for (Line& line : lines_) {
    if (line.session == inquiry.session) sent = send(line);
  }
  if (sent) return true;
  for (Line& line : lines_) {
    const bool usable =
        line.other_hosts && !line.session->has_failed() && line.session->this_thread_may_call();
    if (usable && send(line)) sent = true;
  }
  return sent;
}

void WaitGraph::handle_messages(const ControlNetwork* session) {
  for (Line& line : lines_) {
    if (line.session == session) {
      handle_messages(line);
    } else if (line.other_hosts && !line.broken && line.session->this_thread_may_call()) {
      try {
        handle_messages(line);
      } catch (const std::exception& error) {  // not what this wait is for
        line.broken = true;
        log(LogLevel::warn, error.what());
      }
    }
  }
}

void WaitGraph::handle_messages(Line& line) {
  line.messenger->flush();
  line.messenger->receive([&](const ControlMessage& message, int source) {
    if (any_cut_off()) erase_cut_off(line.numbers[static_cast<std::size_t>(source)]);
    if (const auto* question = std::get_if<Question>(&message)) {
      return answer(*question, line, source);
    }
    const auto* const answer = std::get_if<Answer>(&message);
    if (answer == nullptr) return;
    for (const Inquiry& inquiry : inquiries_) {
      if (inquiry.number != answer->number) continue;
      ask(inquiry, inquiry.asker->hear(understand(*answer, line, source)));
    }
  });
}

void WaitGraph::answer(const Question& question, Line& line, int rank) {
  const RecycledVector<ProcessNumber> processes = waits_.awaited();
  RecycledVector<std::uint64_t> entries;
  for (const ProcessNumber process : processes) {
    const int member = rank_of(process, line.numbers);
    if (member >= 0) {
      entries.push_back(static_cast<std::uint64_t>(member));
    } else {
      entries.push_back(process >= kFirstProcessNumber ? process : Answer::kUnknown);
    }
  }
  Answer answer;
  answer.number = question.number;
  const auto now = time_.now();
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
  const std::size_t awaited = std::min(entries.size(), Answer::kMost);
  std::copy_n(entries.begin(), awaited, answer.entries.begin());
  if (awaited < entries.size()) answer.entries.back() = Answer::kUnknown;  // others as well
  answer.awaited_count = static_cast<std::int32_t>(awaited);
  line.messenger->send(answer, rank);
  line.used = true;
}

// --- Those whose hosts could not be reached -----------------------------------------------------

void WaitGraph::note_cut_off(std::span<const ProcessNumber> processes,
                             std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  for (const ProcessNumber process : processes) {
    erase_cut_off(process);
    cut_off_.push_back({process, timeout, time_.now()});
  }
  any_cut_off_ = !cut_off_.empty();
}

void WaitGraph::forget_cut_off(std::span<const ProcessNumber> processes) {
  const std::lock_guard lock(mutex_);
  for (const ProcessNumber process : processes) erase_cut_off(process);
}

void WaitGraph::erase_cut_off(ProcessNumber process) {
  std::erase_if(cut_off_, [process](const CutOff& one) { return one.process == process; });
  any_cut_off_ = !cut_off_.empty();
}

RecycledVector<ProcessNumber> WaitGraph::cut_off_among(std::span<const ProcessNumber> processes,
                                                       std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const auto now = time_.now();
  std::erase_if(cut_off_, [now](const CutOff& one) { return now - one.noted >= one.timeout; });
  any_cut_off_ = !cut_off_.empty();
  RecycledVector<ProcessNumber> found;
  for (const CutOff& one : cut_off_) {
    const bool counts = one.timeout >= timeout && now - one.noted < timeout;
    if (counts && std::find(processes.begin(), processes.end(), one.process) != processes.end()) {
      found.push_back(one.process);
    }
  }
  return found;
}

WaitGraph::Heard WaitGraph::understand(const Answer& answer, const Line& line, int rank) const {
  Heard heard{line.numbers[static_cast<std::size_t>(rank)],
              rank,
              {},
              false,
              std::chrono::milliseconds(answer.idle),
              std::chrono::milliseconds(answer.idle_later)};
  const auto entries = std::span(answer.entries);
  const auto awaited = entries.first(static_cast<std::size_t>(answer.awaited_count));
  for (const std::uint64_t entry : awaited) {
    if (entry == Answer::kUnknown) {
      heard.awaits_unknown = true;
    } else {
      heard.awaited.push_back(entry < line.numbers.size() ? line.numbers[entry] : entry);
    }
  }
  return heard;
}

}  // namespace tutti
