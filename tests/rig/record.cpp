// Maps records and writes to them.
#include "rig/record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file_descriptor.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

template <std::size_t kSize>
void copy(std::string_view text, std::array<char, kSize>& to) {
  const std::size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

}  // namespace

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

std::string_view name_of(End end) {
  constexpr std::array<std::string_view, 7> kNames{"did not end",   "finished", "PeerLost",
                                                   "MismatchError", "an error", "its own exception",
                                                   "a wrong result"};
  return kNames[static_cast<std::size_t>(end)];
}

void RankRecord::note_end(End how, std::string_view what, const std::vector<int>& ranks) {
  ended = now();
  named_count = static_cast<std::int32_t>(std::min(ranks.size(), named.size()));
  std::copy_n(ranks.begin(), named_count, named.begin());
  copy(what, text);
  end = how;
}

void RankRecord::complain(std::string_view what) { copy(what, complaint); }

std::shared_ptr<Record> map_record(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file || ::ftruncate(file.get(), sizeof(Record)) != 0) {
    throw SystemError("cannot open " + path, errno);
  }
  void* memory = ::mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw SystemError("cannot map " + path, errno);
  return {static_cast<Record*>(memory), [](Record* record) { ::munmap(record, sizeof(Record)); }};
}

}  // namespace tutti::test
