// Writes slices as trace events.
#include "comm/record/trace.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "base/json.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"

namespace tutti::record {
namespace {

constexpr std::chrono::milliseconds kBetweenWrites{100};
constexpr std::size_t kMostSlices = 1 << 17U;  // that wait for being written
constexpr std::size_t kReserved = 4096;
constexpr std::size_t kRoom = std::size_t{1} << 18U;  // of what is written at once, in bytes
constexpr std::ptrdiff_t kMostForSlice = 1024;        // names and texts are short

/** Writes into memory that has room for it: a call is written in a tenth of a microsecond. */
class Cursor {
 public:
  explicit Cursor(char* at) : at_(at) {}

  void put(std::string_view text) {
    std::memcpy(at_, text.data(), text.size());
    at_ += text.size();
  }
  void put(std::int64_t value) { at_ = std::to_chars(at_, at_ + kDigits, value).ptr; }
  /** Microseconds with three places. */
  void put_time(std::int64_t nanoseconds) {
    if (nanoseconds < 0) put("-");
    nanoseconds = std::abs(nanoseconds);
    put(nanoseconds / 1000);
    const auto rest = static_cast<int>(nanoseconds % 1000);
    const std::array<char, 4> places{'.', static_cast<char>('0' + rest / 100),
                                     static_cast<char>('0' + rest / 10 % 10),
                                     static_cast<char>('0' + rest % 10)};
    put(std::string_view(places.data(), places.size()));
  }
  char* at() const { return at_; }

 private:
  static constexpr std::ptrdiff_t kDigits = 24;
  char* at_;
};

/** Where a slice's event ends that begins at `at`. */
char* write_slice(char* at, const Slice& slice, const TracedRank& rank, const TickScale& scale) {
  const std::int64_t begin = scale.nanoseconds(slice.begin);
  Cursor text(at);
  text.put(R"({"ph":"X","pid":)");
  text.put(std::int64_t{rank.number});
  text.put(R"(,"tid":)");
  text.put(static_cast<std::int64_t>(slice.lane));
  text.put(R"(,"ts":)");
  text.put_time(begin - rank.origin);
  text.put(R"(,"dur":)");
  text.put_time(scale.nanoseconds(slice.end) - begin);
  text.put(R"(,"name":")");
  text.put(slice.name);
  text.put(R"(","args":{)");
  const char* separator = "\"";
  for (const Argument& argument : slice.arguments) {
    if (std::holds_alternative<std::monostate>(argument.value)) break;
    text.put(std::exchange(separator, ",\""));
    text.put(argument.name);
    text.put("\":");
    if (const auto* number = std::get_if<std::int64_t>(&argument.value)) {
      text.put(*number);
    } else if (const auto* ticks = std::get_if<Ticks>(&argument.value)) {
      text.put_time(scale.length(ticks->count));
    } else {
      text.put("\"");
      text.put(std::get<const char*>(argument.value));
      text.put("\"");
    }
  }
  text.put("}}");
  return text.at();
}

/** An event that tells the viewer something of a rank or a lane: `value` is JSON. */
std::string about(const TracedRank& rank, std::uint64_t lane, const char* what, const char* key,
                  const std::string& value) {
  return R"({"ph":"M","pid":)" + std::to_string(rank.number) + R"(,"tid":)" + std::to_string(lane) +
         R"(,"name":")" + what + R"(","args":{")" + key + "\":" + value + "}}";
}

}  // namespace

Trace::Trace(TraceFile file, TracedRank rank)
    : file_(std::move(file)), rank_(std::move(rank)), first_lane_(lane()) {
  slices_.reserve(kReserved);
  taken_.reserve(kReserved);
  written_ = clock_.anchor();
  std::string name;
  append_json(name, rank_.name);
  names_ =
      about(rank_, first_lane_, "process_name", "name", name) + ",\n" +
      about(rank_, first_lane_, "process_sort_index", "sort_index", std::to_string(rank_.number));
  name_lane(first_lane_);
  thread_ = start_thread("a timeline", [this] { run(); });
}

Trace::~Trace() { close(); }

std::uint64_t Trace::lane() {
  static thread_local const auto thread = static_cast<std::uint64_t>(::gettid());
  return thread;
}

void Trace::add(Slice slice) { add_to(lane(), slice); }

void Trace::add_to(std::uint64_t lane, Slice slice) {
  slice.lane = lane;
  if (fork_guard_.in_child()) return;
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  try {
    if (slices_.size() < kMostSlices) return slices_.push_back(slice);
  } catch (const std::bad_alloc&) {  // is as good as too many
  }
  ++dropped_;
}

void Trace::name_lane(std::uint64_t lane) {
  if (!named_.insert(lane).second) return;
  const std::string name =
      lane == first_lane_ ? "main" : "stream " + std::to_string(named_.size() - 1);
  if (!names_.empty()) names_ += ",\n";
  names_ += about(rank_, lane, "thread_name", "name", '"' + name + '"');
}

void Trace::write() {
  const std::lock_guard writing(writing_);
  std::int64_t dropped = 0;
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(slices_);
    dropped = std::exchange(dropped_, 0);
  }
  const Anchor now = clock_.anchor();
  const TickScale scale(written_, now);
  // A rate that was measured over less time would be a wrong one.
  constexpr std::int64_t kLeast = 50'000'000;
  if (now.nanoseconds - written_.nanoseconds > kLeast) written_ = now;
  for (const Slice& slice : taken_) name_lane(slice.lane);
  bool written = file_.append(names_);
  if (written) names_.clear();

  text_.resize(kRoom);
  for (std::size_t i = 0; written && i < taken_.size();) {
    char* const begin = text_.data();
    char* at = begin;
    for (; i < taken_.size() && text_.data() + text_.size() - at > kMostForSlice; ++i) {
      if (at != begin) at = std::copy_n(",\n", 2, at);
      at = write_slice(at, taken_[i], rank_, scale);
    }
    written = file_.append(std::string_view(begin, static_cast<std::size_t>(at - begin)));
  }
  taken_.clear();
  if (failed_ || (written && dropped == 0)) return;
  failed_ = true;
  log(LogLevel::warn,
      "the timeline of " + rank_.name + " has gaps: " +
          (written ? "more happened than could be written" : "the file could not be written to"));
}

void Trace::run() {
  std::unique_lock lock(mutex_);
  while (open_) {
    changed_->wait_for(lock, kBetweenWrites, [this] { return !open_; });
    lock.unlock();
    flush();
    lock.lock();
  }
}

void Trace::flush() noexcept {
  try {
    write();
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string("the timeline has gaps: ") + error.what());
  }
}

void Trace::close() noexcept {
  if (fork_guard_.in_child()) {  // the thread is the parent's, and may have held a lock
    if (thread_.joinable()) thread_.detach();
    // The parent's thread waits for it in this copy for ever, and its end would wait for that.
    static_cast<void>(changed_.release());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  changed_->notify_all();
  if (thread_.joinable()) thread_.join();
  flush();
}

}  // namespace tutti::record
