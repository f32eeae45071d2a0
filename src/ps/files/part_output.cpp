// Writes the file of a part on a thread of its own, so that a server never waits for the disk.
#include "ps/files/part_output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/thread.hpp"
#include "base/xxhash64.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw SystemError(folder.string() + ": cannot be made", error.value());
}

/** The names in a folder are on the disk. */
void synchronise_folder(const fs::path& folder) {
  const FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot synchronise folders, and say EINVAL.
  if (!open || (::fsync(open.get()) != 0 && errno != EINVAL)) {
    throw SystemError(folder.string() + ": cannot be written", errno);
  }
}

}  // namespace

/** It is written from its beginning to its end, and removed unless it comes to that. */
class PartOutput::File {
 public:
  explicit File(fs::path path)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (!file_) fail();
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (file_) ::unlink(path_.c_str());
  }

  void write(Section& section) {
    SectionHeader& header = section.header;
    header.bytes = std::ssize(section.buffer.payload());
    header.payload_checksum = xxhash64(section.buffer.payload());
    header.header_checksum = checksum_of(header, checksum_);
    checksum_ = header.header_checksum;
    write(section.buffer.seal(header));
  }

  void finish(const fs::path& path) {
    if (::fsync(file_.get()) != 0) fail();
    if (::rename(path_.c_str(), path.c_str()) != 0) fail();
    file_.reset(-1);
  }

 private:
  void write(std::span<const std::byte> bytes) {
    const std::int64_t begin = written_;
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail();
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      written_ += count;
    }
    // The disk begins now, while the next section is gathered. Where it cannot, finish() waits.
    ::sync_file_range(file_.get(), begin, written_ - begin, SYNC_FILE_RANGE_WRITE);
  }
  [[noreturn]] void fail() const {
    throw SystemError(path_.string() + ": cannot be written", errno);
  }

  fs::path path_;
  FileDescriptor file_;
  std::int64_t written_ = 0;
  std::uint64_t checksum_ = 0;  // of the headers so far
};

PartOutput::PartOutput(fs::path file) : file_(std::move(file)) {
  free_.resize(kBuffers);
  thread_ = start_thread("a checkpoint", [this] { run(); });
}

PartOutput::~PartOutput() {
  stop();
  thread_.join();
}

void PartOutput::run() {
  std::exception_ptr failure;
  try {
    const fs::path parts_folder = file_.parent_path();
    make_folder(parts_folder);
    File file(file_.string() + ".tmp");
    for (std::deque<Section> sections; take(sections); give_back(sections)) {
      for (Section& section : sections) file.write(section);
    }
    if (is_wanted()) {
      file.finish(file_);
      synchronise_folder(parts_folder);
      synchronise_folder(parts_folder.parent_path());
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  stopped_ = true;
  changed_.notify_all();
}

bool PartOutput::is_wanted() const {
  const std::lock_guard lock(mutex_);
  return !unwanted_;
}

bool PartOutput::take(std::deque<Section>& sections) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !waiting_.empty() || all_there_ || unwanted_; });
  if (waiting_.empty() || unwanted_) return false;
  sections.swap(waiting_);
  return true;
}

void PartOutput::give_back(std::deque<Section>& sections) {
  const std::lock_guard lock(mutex_);
  for (Section& section : sections) free_.push_back(std::move(section.buffer));
  sections.clear();
  changed_.notify_all();
}

bool PartOutput::has_room() const {
  const std::lock_guard lock(mutex_);
  return !free_.empty() || stopped_;
}

SectionBuffer PartOutput::buffer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_.empty() || stopped_; });
  throw_failure();
  SectionBuffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

void PartOutput::write(SectionBuffer section, const SectionHeader& header) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({std::move(section), header});
  changed_.notify_all();
}

void PartOutput::finish() {
  const std::lock_guard lock(mutex_);
  all_there_ = true;
  changed_.notify_all();
}

void PartOutput::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_; });
  throw_failure();
}

void PartOutput::stop() {
  const std::lock_guard lock(mutex_);
  unwanted_ = true;
  changed_.notify_all();
}

bool PartOutput::has_stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void PartOutput::throw_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace tutti::ps
