// Opens the file of a timeline on all ranks.
#include "comm/record/timeline_file.hpp"

#include <array>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti::record {
namespace {

constexpr const char* kVariable = "TUTTI_TIMELINE";

std::string random_name() {
  std::array<std::byte, 8> bytes{};
  fill_with_random(bytes, "the name of a timeline");
  std::string name;
  for (const std::byte byte : bytes) {
    std::array<char, 4> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", std::to_integer<unsigned>(byte));
    name += digits.data();
  }
  return name;
}

/** "rank 3 of 4 on node7", and how well its clock is known. */
std::string title_of(const Communicator& communicator, const ClockOffset& clock) {
  std::string title = "rank " + std::to_string(communicator.global_rank()) + " of " +
                      std::to_string(communicator.world_size()) + " on " + host_name();
  if (clock.error > 0) {
    title += ", clock " + number_text(static_cast<double>(clock.offset) / 1000) + " us ahead, to " +
             number_text(static_cast<double>(clock.error) / 1000) + " us";
  }
  return title;
}

/** The process' timeline. */
struct Current {
  std::mutex mutex;
  std::shared_ptr<TimelineFile> given;
  std::shared_ptr<TimelineFile> of_environment;

  static Current& of_this_process() {
    static Current& never_destroyed = *new Current;
    return never_destroyed;
  }
};

}  // namespace

struct TimelineFile::Opening {
  std::array<char, 24> run{};
  std::array<char, 256> fault{};
  std::int64_t origin = 0;  // on rank 0's clock
  std::int64_t first = 0;   // the number of rank 0's lanes
};

TimelineFile::TimelineFile(const std::filesystem::path& path, std::string source)
    : path_(std::filesystem::absolute(path)), source_(std::move(source)) {}

TimelineFile::Opening TimelineFile::open_first(const Communicator& communicator) {
  Opening opening;
  try {
    const std::lock_guard lock(mutex_);
    const bool joins = !run_.empty() && TraceFile::open(path_, run_);
    if (joins) {  // numbers that the ranks of no other communicator have
      std::array<std::byte, 4> bytes{};
      fill_with_random(bytes, "the lanes of a timeline");
      for (const std::byte byte : bytes) {
        opening.first = opening.first << 8 | std::to_integer<std::int64_t>(byte);
      }
      // Viewers take no negative numbers, nor those of more than 32 bits.
      opening.first = (opening.first & 0x3fffffff) + communicator.world_size();
    } else {
      run_ = random_name();
      origin_ = TickClock::monotonic();
      TraceFile::create(path_, run_);
    }
    run_.copy(opening.run.data(), opening.run.size() - 1);
    opening.origin = origin_;
  } catch (const std::exception& error) {
    std::snprintf(opening.fault.data(), opening.fault.size(), "%s", error.what());
  }
  return opening;
}

std::shared_ptr<Trace> TimelineFile::join(Communicator& communicator) {
  static_assert(std::is_trivially_copyable_v<Opening>);
  const ClockOffset clock = measure_clock(communicator, clock_identity(), &TickClock::monotonic);
  Opening opening;
  if (communicator.global_rank() == 0) opening = open_first(communicator);
  communicator.broadcast({&opening, sizeof opening, DType::u8}, 0);
  if (opening.fault[0] != '\0') {
    throw InvalidArgument(source_ + " is '" + path_.string() + "': " + opening.fault.data());
  }
  const std::string run = opening.run.data();
  std::optional<TraceFile> file = TraceFile::open(path_, run);
  communicator.barrier();
  if (!file && communicator.local_rank() == 0 && !TraceFile::open(path_, run)) {
    try {
      TraceFile::create(path_, run);
    } catch (const Error& error) {
      log(LogLevel::warn, std::string("no timeline of this host: ") + error.what());
    }
  }
  communicator.barrier();
  if (!file) file = TraceFile::open(path_, run);
  if (!file) {
    log(LogLevel::warn, "no timeline of rank " + std::to_string(communicator.global_rank()) +
                            ": it cannot open '" + path_.string() + "'");
    return nullptr;
  }

  const std::int64_t origin = opening.origin + clock.offset;
  const int number = static_cast<int>(opening.first) + communicator.global_rank();
  auto trace = std::make_shared<Trace>(std::move(*file),
                                       TracedRank{number, title_of(communicator, clock), origin});
  const std::lock_guard lock(mutex_);
  run_ = run;
  origin_ = origin;
  traces_.push_back(trace);
  return trace;
}

void TimelineFile::close() noexcept {
  const std::lock_guard lock(mutex_);
  for (const std::weak_ptr<Trace>& weak : traces_) {
    if (const auto trace = weak.lock()) trace->close();
  }
  traces_.clear();
}

std::shared_ptr<TimelineFile> current_timeline() {
  Current& current = Current::of_this_process();
  const std::lock_guard lock(current.mutex);
  if (current.given) return current.given;
  const auto path = environment(kVariable);
  if (!path) return nullptr;
  if (!current.of_environment ||
      current.of_environment->path() != std::filesystem::absolute(*path)) {
    current.of_environment = std::make_shared<TimelineFile>(*path, kVariable);
  }
  return current.of_environment;
}

std::int64_t current_timeline_hash() {
  const auto file = current_timeline();
  return file ? static_cast<std::int64_t>(hash_text(file->path().string())) : 0;
}

void set_current_timeline(std::shared_ptr<TimelineFile> file) {
  Current& current = Current::of_this_process();
  const std::lock_guard lock(current.mutex);
  if (current.given) {
    throw InvalidArgument("there is a Timeline already, which writes to '" +
                          current.given->path().string() + "'");
  }
  current.given = std::move(file);
}

void end_current_timeline() noexcept {
  Current& current = Current::of_this_process();
  const std::lock_guard lock(current.mutex);
  current.given.reset();
}

}  // namespace tutti::record
