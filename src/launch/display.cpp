// Shows lines of ranks.
#include "launch/display.hpp"

#include <ctime>

#include <algorithm>
#include <array>

namespace tutti::launch {
namespace {

constexpr std::chrono::milliseconds kWait{100};  // for equal lines of other ranks
constexpr std::chrono::milliseconds kDraw{200};  // between two drawings of the state
constexpr std::size_t kMostWaiting = 2000;
constexpr std::size_t kFlood = 16 << 10;  // so much at once is not compared with other ranks'

/** "0-2,5". */
std::string ranges_text(const std::set<int>& numbers) {
  std::string text;
  for (auto number = numbers.begin(); number != numbers.end();) {
    const int first = *number;
    int last = first;
    while (++number != numbers.end() && *number == last + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

std::string time_of_day() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &local);
  return text.data() + ("." + std::to_string(1000 + now.tv_nsec / 1'000'000).substr(1));
}

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
}

}  // namespace

Display::Display(const RunOptions& options)
    : tee_(options.tee), prefix_(options.prefix), one_sink_(out_.same_as(err_)) {}

void Display::begin(const Plan& plan) {
  plan_ = &plan;
  buffers_.clear();
  last_of_rank_.clear();
}

void Display::output(const RankPlan& rank, MessageType stream, std::string_view text) {
  const bool alone = !tee_.all && tee_.ranks.size() == 1;
  if (!prefix_ && (alone || plan_->ranks.size() == 1) && shows_out(rank.rank)) {
    write(sink_of(stream), text);
    return;
  }
  LineBuffer& buffer = buffers_[{rank.rank, stream}];
  if (text.size() < kFlood) {
    buffer.append(text, [&](std::string_view line) { add_line(rank, stream, line); });
    return;
  }
  write_waiting(SteadyClock::time_point::max());
  const std::string prefix = prefix_of({rank.rank});
  std::string lines;
  buffer.append(text,
                [&](std::string_view line) { lines.append(prefix).append(line).push_back('\n'); });
  write_lines(stream, lines);
}

void Display::end_output(const RankPlan& rank) {
  for (const MessageType stream : {MessageType::out, MessageType::err}) {
    const auto buffer = buffers_.find({rank.rank, stream});
    if (buffer == buffers_.end() || buffer->second.empty()) continue;
    buffer->second.finish([&](std::string_view line) { add_line(rank, stream, line); });
  }
}

void Display::add_line(const RankPlan& rank, MessageType stream, std::string_view text) {
  std::uint64_t& after_last = last_of_rank_[rank.rank];
  if (!prefix_) {
    // Only behind what this rank has printed before, so that its lines stay in order.
    const std::uint64_t behind = std::max(after_last, first_waiting_) - first_waiting_;
    for (std::size_t i = behind; i < waiting_.size(); ++i) {
      if (waiting_[i].stream != stream || waiting_[i].text != text) continue;
      waiting_[i].ranks.insert(rank.rank);
      after_last = first_waiting_ + i + 1;
      return;
    }
  }
  waiting_.push_back({stream, std::string(text), {rank.rank}, SteadyClock::now()});
  after_last = first_waiting_ + waiting_.size();
  if (prefix_ || waiting_.size() > kMostWaiting) {
    write_first();
  }
  if (!waiting_.empty() && !timer_.set()) timer_.start(kWait);
}

std::string Display::prefix_of(const std::set<int>& ranks) const {
  const RankPlan& first = plan_->ranks.at(static_cast<std::size_t>(*ranks.begin()));
  if (prefix_) {
    std::string text = *prefix_;
    replace_all(text, "{rank}", std::to_string(first.rank));
    replace_all(text, "{local_rank}", std::to_string(first.local_rank));
    replace_all(text, "{role}", name_of(first.role));
    replace_all(text, "{index}", std::to_string(first.index));
    replace_all(text, "{host}", first.host);
    replace_all(text, "{time}", time_of_day());
    return text;
  }
  if (!plan_->has_roles) return "[" + ranges_text(ranks) + "] ";
  std::string text;
  for (const Role role : {Role::worker, Role::heter_worker, Role::server}) {
    std::set<int> numbers;
    for (const int rank : ranks) {
      const RankPlan& other = plan_->ranks.at(static_cast<std::size_t>(rank));
      if (other.role == role) numbers.insert(other.index);
    }
    if (numbers.empty()) continue;
    text += (text.empty() ? "[" : ", ") + std::string(name_of(role)) + " " + ranges_text(numbers);
  }
  return text + "] ";
}

void Display::write_lines(MessageType stream, std::string_view lines) {
  Sink& sink = sink_of(stream);
  if (!lines.empty() && !sink.at_line_start() && !state_drawn_) sink.write("\n");
  write(sink, lines);
}

void Display::write_first() {
  const Line& line = waiting_.front();
  write_lines(line.stream, prefix_of(line.ranks) + line.text + "\n");
  waiting_.pop_front();
  ++first_waiting_;
}

void Display::write_waiting(SteadyClock::time_point until) {
  while (!waiting_.empty() && waiting_.front().since <= until) write_first();
}

void Display::say(std::string_view text) {
  write_lines(MessageType::err, std::string(text) + "\n");
  flush();
}

Sink& Display::sink_of(MessageType stream) {
  return stream == MessageType::out && !one_sink_ ? out_ : err_;
}

void Display::write(Sink& sink, std::string_view text) {
  clear_state();
  sink.write(text);
  if (draws_state() && !timer_.set()) timer_.start(kDraw);
}

void Display::clear_state() {
  if (std::exchange(state_drawn_, false)) err_.erase_line();
}

void Display::flush() {
  out_.flush();
  err_.flush();
}

void Display::refresh() {
  timer_.stop();
  flush();
  const auto now = SteadyClock::now();
  write_waiting(now - kWait);
  if (!waiting_.empty()) timer_.start(waiting_.front().since + kWait - now);
  if (!draws_state()) return;
  if (!state_.empty() && (err_.at_line_start() || state_drawn_) && err_.unwritten() == 0) {
    err_.erase_line();
    err_.write(std::string_view(state_).substr(0, whole_characters(state_, err_.columns() - 1)));
    state_drawn_ = true;
  }
  if (!timer_.set()) timer_.start(kDraw);
}

void Display::hurry() {
  hurries_ = true;
  out_.hurry();
  err_.hurry();
}

void Display::finish() {
  write_waiting(SteadyClock::time_point::max());
  timer_.stop();
  clear_state();
  timer_.stop();
}

}  // namespace tutti::launch
