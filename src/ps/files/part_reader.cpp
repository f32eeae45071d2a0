// Walks over the sections of a part, and believes nothing before it has been checked.
#include "ps/files/part_reader.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/refuse.hpp"
#include "base/xxhash64.hpp"
#include "ps/table/place.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps {
namespace {

/** Takes arrays off the bytes of a section. */
class Arrays {
 public:
  explicit Arrays(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  std::span<const T> next(std::int64_t count) {
    const auto taken = bytes_.first(static_cast<std::size_t>(count) * sizeof(T));
    bytes_ = bytes_.subspan(taken.size());
    return {reinterpret_cast<const T*>(taken.data()), static_cast<std::size_t>(count)};
  }

 private:
  std::span<const std::byte> bytes_;
};

/** Whether the ids are between those that the header names. */
bool has_hashes(const SectionHeader& header, std::span<const std::int64_t> ids) {
  return std::all_of(ids.begin(), ids.end(), [&](std::int64_t id) {
    const std::uint64_t hash = mix64(static_cast<std::uint64_t>(id));
    return hash >= header.first_hash && hash <= header.last_hash;
  });
}

}  // namespace

void require_round(const std::string& path, std::int64_t round, std::int64_t first) {
  if (round == first) return;
  refuse(path, ": is of round ", round, ", but server 0's part is of round ", first);
}

StoredRow StoredRows::row(std::size_t i) const {
  return {.id = ids[i],
          .weights = weights.data() + i * static_cast<std::size_t>(table.dim),
          .state = state.data() + i * static_cast<std::size_t>(table.state_floats),
          .last_step = last_steps[i],
          .shows = shows[i],
          .clicks = clicks[i]};
}

PartReader::PartReader(const std::filesystem::path& folder, const Manifest& manifest, int server)
    : file_(parts_folder(folder, manifest.attempt) / part_name(server)),
      entry_(manifest.parts[static_cast<std::size_t>(server)]) {
  if (file_.bytes() != entry_.bytes) {
    refuse_damaged(path(), "it has " + std::to_string(file_.bytes()) + " bytes, not " +
                               std::to_string(entry_.bytes));
  }
  rewind();
  const SectionHeader first = next_header();
  if (first.kind != SectionKind::part) refuse_damaged(path(), "it does not begin as a part does");
  description_ = decode_part(payload(first), path());
  if (description_.server != server || description_.servers != std::ssize(manifest.parts)) {
    refuse_damaged(path(), "it is the part of server " + std::to_string(description_.server) +
                               " of " + std::to_string(description_.servers));
  }
}

void PartReader::rewind() {
  offset_ = 0;
  checksum_ = 0;
  sections_ = 0;
}

SectionHeader PartReader::next_header() {
  SectionHeader header;
  file_.read(offset_, std::as_writable_bytes(std::span(&header, 1)));
  if (header.magic != SectionHeader::kMagic ||
      header.header_checksum != checksum_of(header, checksum_)) {
    refuse_damaged(path(), "the header at byte " + std::to_string(offset_) + " is none");
  }
  offset_ += static_cast<std::int64_t>(sizeof header);
  if (header.bytes < 0 || header.bytes > file_.bytes() - offset_ || header.count < 0) {
    refuse_damaged(path(), "the section at byte " + std::to_string(offset_) + " is too long");
  }
  checksum_ = header.header_checksum;
  ++sections_;
  return header;
}

std::span<const std::byte> PartReader::payload(const SectionHeader& header) {
  if (std::ssize(buffer_) < header.bytes) buffer_.resize(static_cast<std::size_t>(header.bytes));
  const auto bytes = std::span(buffer_).first(static_cast<std::size_t>(header.bytes));
  file_.read(offset_, bytes);
  if (xxhash64(bytes) != header.payload_checksum) {
    refuse_damaged(
        path(), "the checksum of the section at byte " + std::to_string(offset_) + " is another");
  }
  return bytes;
}

void PartReader::visit(SectionVisitor& visitor) {
  rewind();
  offset_ += next_header().bytes;  // the description
  while (true) {
    InterruptCheck::poll();
    const SectionHeader header = next_header();
    if (header.kind == SectionKind::end) {
      if (header.count != sections_ - 1 || header.bytes != 0 || offset_ != file_.bytes() ||
          header.header_checksum != entry_.checksum) {
        refuse_damaged(path(), "its end is not that of this checkpoint");
      }
      return;
    }
    if (visitor.wants(header)) hand_out(header, visitor);
    offset_ += header.bytes;
  }
}

void PartReader::hand_out(const SectionHeader& header, SectionVisitor& visitor) {
  const auto require = [&](bool is_good) {
    if (!is_good) {
      refuse_damaged(path(), "the section at byte " + std::to_string(offset_) + " makes no sense");
    }
  };
  const bool is_block = header.kind == SectionKind::block;
  require(is_block || header.kind == SectionKind::rows || header.kind == SectionKind::counts);
  require(header.number >= 0 && header.number < (is_block ? std::ssize(description_.blocks)
                                                          : std::ssize(description_.tables)));
  const auto number = static_cast<std::size_t>(header.number);
  if (is_block) {
    const BlockDescription& block = description_.blocks[number];
    require(header.bytes == block.bytes());
    Arrays arrays(payload(header));
    const auto values = arrays.next<float>(block.count);
    visitor.block(header.number, values, arrays.next<float>(block.state_floats));
  } else if (header.kind == SectionKind::counts) {
    const std::int64_t n = header.bytes / kCountBytes;
    require(header.count == n && header.bytes == n * kCountBytes);
    Arrays arrays(payload(header));
    const auto ids = arrays.next<std::int64_t>(n);
    const auto last_steps = arrays.next<std::int64_t>(n);
    const auto sums = arrays.next<double>(n);
    require(has_hashes(header, ids));
    require(std::all_of(sums.begin(), sums.end(),
                        [](double sum) { return std::isfinite(sum) && sum >= 0; }));
    visitor.counts(header.number, {ids, last_steps, sums});
  } else {
    const TableDescription& table = description_.tables[number];
    const std::int64_t n = header.bytes / table.row_bytes();
    require(header.count == n && header.bytes == n * table.row_bytes());
    Arrays arrays(payload(header));
    const auto ids = arrays.next<std::int64_t>(n);
    const auto last_steps = arrays.next<std::int64_t>(n);
    const auto shows = arrays.next<float>(n);
    const auto clicks = arrays.next<float>(n);
    const auto weights = arrays.next<float>(n * table.dim);
    const auto state = arrays.next<float>(n * table.state_floats);
    require(has_hashes(header, ids));
    visitor.rows(header.number, {table, ids, last_steps, shows, clicks, weights, state});
  }
}

}  // namespace tutti::ps
