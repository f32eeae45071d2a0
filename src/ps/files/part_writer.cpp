// Writes one server's part of a checkpoint, shard by shard.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <system_error>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/memory.hpp"
#include "base/xxhash64.hpp"
#include "ps/files/checkpoint.hpp"
#include "ps/files/format.hpp"
#include "ps/files/manifest.hpp"
#include "ps/table/place.hpp"
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

/** A file that is written from its beginning to its end. */
class Output {
 public:
  explicit Output(fs::path path)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (!file_) fail();
  }

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

  void finish(const fs::path& path) {
    if (::fsync(file_.get()) != 0) fail();
    if (::rename(path_.c_str(), path.c_str()) != 0) fail();
    file_.reset(-1);
  }

 private:
  [[noreturn]] void fail() const {
    throw SystemError(path_.string() + ": cannot be written", errno);
  }

  fs::path path_;
  FileDescriptor file_;
  std::int64_t written_ = 0;
};

/** Room for a section, header included, that keeps its memory. */
class SectionBuffer {
 public:
  /** Room for the next arrays, in the order in which they are asked for. */
  void begin(std::int64_t bytes) {
    const std::size_t needed = sizeof(SectionHeader) + static_cast<std::size_t>(bytes);
    if (bytes_.size() < needed) bytes_.resize(needed);
    end_ = sizeof(SectionHeader);
  }
  template <class T>
  T* next(std::int64_t count) {
    T* const array = reinterpret_cast<T*>(bytes_.data() + end_);
    end_ += static_cast<std::size_t>(count) * sizeof(T);
    return array;
  }
  template <class T>
  void append(std::span<const T> array) {
    copy_bytes(next<T>(std::ssize(array)), array.data(),
               static_cast<std::int64_t>(array.size_bytes()));
  }
  std::span<const std::byte> payload() const { return whole().subspan(sizeof(SectionHeader)); }
  std::span<const std::byte> seal(const SectionHeader& header) {
    std::memcpy(bytes_.data(), &header, sizeof header);
    return whole();
  }

 private:
  std::span<const std::byte> whole() const { return std::span(bytes_).first(end_); }

  std::vector<std::byte> bytes_;
  std::size_t end_ = 0;
};

}  // namespace

class PartWriter::Impl {
 public:
  Impl(const ServerState& state, const fs::path& folder, const std::string& attempt, int server,
       int servers)
      : state_(state),
        folder_(folder),
        parts_folder_(ready_folder(folder, attempt)),
        path_(parts_folder_ / part_name(server)),
        output_(path_.string() + ".tmp") {
    PartDescription part{server, servers, state.round, {}, {}};
    for (const Table& table : state_.tables) part.tables.push_back(describe(table));
    for (std::size_t i = 0; i < blocks().size(); ++i) {
      part.blocks.push_back(describe(blocks()[i], std::ssize(state_.dense->state(as_block(i)))));
    }
    const std::vector<std::byte> bytes = encode(part);
    buffer_.begin(std::ssize(bytes));
    buffer_.append(std::span(bytes));
    write({.kind = SectionKind::part});
    tables_ = std::move(part.tables);
    blocks_ = std::move(part.blocks);
  }

  bool next() {
    // Empty shards have no section, and take no call.
    bool wrote = false;
    while (!wrote && table_ < tables_.size()) {
      wrote = shard_ < Table::kShards ? write_shard() : write_counts();
      if (++shard_ > Table::kShards) {
        shard_ = 0;
        ++table_;
      }
    }
    if (!wrote && block_ < blocks_.size()) {
      write_block(block_++);
      wrote = true;
    }
    if (!wrote && !std::exchange(ended_, true)) {
      write_end();
      wrote = true;
    }
    if (!wrote) {
      await_writing();
      wrote = !std::exchange(finished_, true);
      if (wrote) writing_ = std::async(std::launch::async, [this] { finish_file(); });
    }
    return wrote;
  }

  bool is_busy() const {
    return writing_.valid() &&
           writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }

 private:
  static fs::path ready_folder(const fs::path& folder, const std::string& attempt) {
    check_attempt(attempt);
    fs::path parts = parts_folder(folder, attempt);
    make_folder(parts);
    return parts;
  }

  static std::int64_t as_block(std::size_t i) { return static_cast<std::int64_t>(i); }

  std::span<const OwnBlock> blocks() const {
    return state_.dense == nullptr ? std::span<const OwnBlock>() : state_.dense->blocks();
  }

  bool write_shard() {
    const Table& table = state_.tables[table_];
    const TableDescription& description = tables_[table_];
    const std::int64_t n = table.rows_of_shard(shard_);
    if (n == 0) return false;
    SectionHeader header{.kind = SectionKind::rows,
                         .number = static_cast<std::int32_t>(table_),
                         .count = n,
                         .first_hash = ~std::uint64_t{0},
                         .last_hash = 0};
    buffer_.begin(n * description.row_bytes());
    auto* const ids = buffer_.next<std::int64_t>(n);
    auto* const last_steps = buffer_.next<std::int64_t>(n);
    auto* const shows = buffer_.next<float>(n);
    auto* const clicks = buffer_.next<float>(n);
    auto* weights = buffer_.next<float>(n * description.dim);
    auto* state = buffer_.next<float>(n * description.state_floats);
    std::int64_t i = 0;
    table.for_each_row(shard_, [&](const StoredRow& row) {
      ids[i] = row.id;
      last_steps[i] = row.last_step;
      shows[i] = row.shows;
      clicks[i] = row.clicks;
      weights = std::copy_n(row.weights, description.dim, weights);
      state = std::copy_n(row.state, description.state_floats, state);
      const std::uint64_t hash = mix64(static_cast<std::uint64_t>(row.id));
      header.first_hash = std::min(header.first_hash, hash);
      header.last_hash = std::max(header.last_hash, hash);
      ++i;
    });
    write(header);
    return true;
  }

  bool write_counts() {
    const std::span<const double> counts = state_.tables[table_].entry_counts();
    if (counts.empty()) return false;
    buffer_.begin(static_cast<std::int64_t>(counts.size_bytes()));
    buffer_.append(counts);
    write({.kind = SectionKind::counts, .number = static_cast<std::int32_t>(table_)});
    return true;
  }

  void write_block(std::size_t i) {
    const std::span<const float> state = state_.dense->state(as_block(i));
    std::size_t offset = 0;
    for (std::size_t before = 0; before < i; ++before) {
      offset += static_cast<std::size_t>(blocks_[before].count);
    }
    buffer_.begin(blocks_[i].bytes());
    buffer_.append(
        state_.dense->values().subspan(offset, static_cast<std::size_t>(blocks_[i].count)));
    buffer_.append(state);
    write({.kind = SectionKind::block, .number = static_cast<std::int32_t>(i)});
  }

  void write_end() {
    buffer_.begin(0);
    write({.kind = SectionKind::end, .count = sections_});
  }

  /** Writes what is in the buffer, while the next section is gathered. */
  void write(const SectionHeader& header) {
    await_writing();
    std::swap(buffer_, in_writing_);
    writing_ = std::async(std::launch::async, [this, header] { write_now(header); });
    ++sections_;
  }

  void write_now(SectionHeader header) {
    header.bytes = std::ssize(in_writing_.payload());
    header.payload_checksum = xxhash64(in_writing_.payload());
    header.header_checksum = checksum_of(header, checksum_);
    checksum_ = header.header_checksum;
    output_.write(in_writing_.seal(header));
  }

  void finish_file() {
    output_.finish(path_);
    synchronise_folder(parts_folder_);
    synchronise_folder(folder_);
  }

  /** Throws what writing has thrown. */
  void await_writing() {
    if (writing_.valid()) writing_.get();
  }

  ServerState state_;
  fs::path folder_;
  fs::path parts_folder_;
  fs::path path_;
  Output output_;
  SectionBuffer buffer_;
  SectionBuffer in_writing_;
  std::vector<TableDescription> tables_;
  std::vector<BlockDescription> blocks_;
  // What comes next.
  std::size_t table_ = 0;
  int shard_ = 0;  // Table::kShards: the counts
  std::size_t block_ = 0;
  bool ended_ = false;     // the last section has been handed over
  bool finished_ = false;  // what finish_file() does, too
  std::int64_t sections_ = 0;
  std::uint64_t checksum_ = 0;
  std::future<void> writing_;  // the last: it uses the others
};

PartWriter::PartWriter(const ServerState& state, const std::string& folder,
                       const std::string& attempt, int server, int servers)
    : impl_(std::make_unique<Impl>(state, folder, attempt, server, servers)) {}
PartWriter::PartWriter(PartWriter&&) noexcept = default;
PartWriter& PartWriter::operator=(PartWriter&&) noexcept = default;
PartWriter::~PartWriter() = default;

bool PartWriter::next() { return impl_->next(); }
bool PartWriter::is_busy() const { return impl_->is_busy(); }

}  // namespace tutti::ps
