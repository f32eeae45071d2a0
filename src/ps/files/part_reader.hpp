// Reads one server's part of a checkpoint, section by section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "ps/files/format.hpp"
#include "ps/files/input_file.hpp"
#include "ps/files/manifest.hpp"

namespace tutti::ps {

/** The rows of a section, as they lie there. */
struct StoredRows {
  const TableDescription& table;
  std::span<const std::int64_t> ids;
  std::span<const std::int64_t> last_steps;
  std::span<const float> shows;
  std::span<const float> clicks;
  std::span<const float> weights;
  std::span<const float> state;

  StoredRow row(std::size_t i) const;
};

/** The counts of a section. */
struct StoredCounts {
  std::span<const std::int64_t> ids;
  std::span<const std::int64_t> last_steps;
  std::span<const double> sums;
};

/** Takes what it wants of a part. What it gets has been checked: the sizes, the checksums. */
class SectionVisitor {
 public:
  virtual ~SectionVisitor() = default;

  /** Whether the section is to be read at all. */
  virtual bool wants(const SectionHeader& header) = 0;
  virtual void rows(int table, const StoredRows& rows) = 0;
  virtual void counts(int table, const StoredCounts& counts) = 0;
  virtual void block(int block, std::span<const float> values, std::span<const float> state) = 0;
};

class PartReader {
 public:
  /** Opens the part of a server, which must be what the manifest says of it, and reads what it says
   * of itself. Throws InvalidArgument naming the file, SystemError. */
  PartReader(const std::filesystem::path& folder, const Manifest& manifest, int server);

  const std::string& path() const { return file_.path(); }
  const PartDescription& description() const { return description_; }
  /** Goes over all sections. May be called again. Throws as the constructor does. */
  void visit(SectionVisitor& visitor);

 private:
  /** The header at offset_, after which offset_ is. */
  SectionHeader next_header();
  /** What follows that header; until the next call. */
  std::span<const std::byte> payload(const SectionHeader& header);
  void hand_out(const SectionHeader& header, SectionVisitor& visitor);
  void rewind();

  InputFile file_;
  PartEntry entry_;
  PartDescription description_;
  std::int64_t offset_ = 0;
  std::uint64_t checksum_ = 0;  // of the headers so far
  std::int64_t sections_ = 0;
  std::vector<std::byte> buffer_;
};

/** Throws InvalidArgument unless a part is of the round that the first part is of. */
void require_round(const std::string& path, std::int64_t round, std::int64_t first);

}  // namespace tutti::ps
