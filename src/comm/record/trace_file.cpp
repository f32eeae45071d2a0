// Appends to a JSON file that stays complete.
#include "comm/record/trace_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/json.hpp"
#include "tutti/output_file.hpp"

namespace tutti::record {
namespace {

constexpr std::string_view kEnd = "\n]}\n";
constexpr std::string_view kRun = "\"run\": ";
constexpr std::chrono::milliseconds kPatience{1000};  // with a writer that was stopped at its work
constexpr std::chrono::microseconds kLook{200};

std::string quoted(std::string_view text) {
  std::string result;
  append_json(result, text);
  return result;
}

/** Bytes from `begin`, fewer at the end of the file. */
std::string read_at(int file, std::int64_t begin, std::size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t got = ::pread(file, text.data(), bytes, begin);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

bool write_at(int file, std::int64_t begin, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(file, text.data(), text.size(), begin);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    begin += written;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

void TraceFile::create(const std::filesystem::path& path, std::string_view run) {
  OutputFile file(path);
  file.write(std::string("{\"otherData\": {\"writer\": \"tutti\", ") + std::string(kRun) +
             quoted(run) +
             ", \"clock\": \"that of rank 0, from the start of the timeline\"}, "
             "\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n" +
             R"({"ph":"M","pid":0,"name":"process_sort_index","args":{"sort_index":0}})" +
             std::string(kEnd));
  file.commit();
}

std::optional<TraceFile> TraceFile::open(const std::filesystem::path& path, std::string_view run) {
  constexpr std::size_t kHead = 256;
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return std::nullopt;
  const std::string head = read_at(file.get(), 0, kHead);
  if (head.find(std::string(kRun) + quoted(run)) == std::string::npos) return std::nullopt;
  return TraceFile(std::move(file));
}

std::optional<std::int64_t> TraceFile::find_end() {
  constexpr std::int64_t kMostLost = std::int64_t{64} << 20U;  // more than is written at once
  struct stat status {};
  const bool stands = ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0;
  if (!stands) return std::nullopt;  // or another timeline has taken its place
  const auto size = static_cast<std::int64_t>(status.st_size);
  const auto length = static_cast<std::int64_t>(kEnd.size());
  if (read_at(file_.get(), size - length, kEnd.size()) == kEnd) return size - length;
  for (std::int64_t looked = 4096; looked <= kMostLost; looked *= 4) {
    const std::int64_t begin = size > looked ? size - looked : 0;
    const std::string tail = read_at(file_.get(), begin, static_cast<std::size_t>(size - begin));
    const std::size_t last = tail.rfind("},\n");
    if (last == std::string::npos && begin > 0) continue;
    if (last == std::string::npos) return std::nullopt;
    const std::int64_t end = begin + static_cast<std::int64_t>(last) + 1;
    if (::ftruncate(file_.get(), end) != 0) return std::nullopt;
    return end;
  }
  return std::nullopt;
}

bool TraceFile::append(std::string_view events) {
  if (events.empty()) return true;
  Deadline deadline(kPatience);
  while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || deadline.expired()) return false;
    std::this_thread::sleep_for(kLook);
  }
  const std::optional<std::int64_t> end = find_end();
  std::string text = ",\n";
  text += events;
  text += kEnd;
  const bool written = end && write_at(file_.get(), *end, text);
  if (end && !written) {  // the disk is full: back to what it was, for which there is room
    if (::ftruncate(file_.get(), *end) == 0) write_at(file_.get(), *end, kEnd);
  }
  ::flock(file_.get(), LOCK_UN);
  return written;
}

}  // namespace tutti::record
