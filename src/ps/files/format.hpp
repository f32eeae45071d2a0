// What a part of a checkpoint is made of: sections, each with a header and checksums.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps/dense/store.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

/**
 * A part begins with a section `part`, a PartDescription; then there are rows, counts and blocks
 * (or pieces of them) in any order, but rows of a table, and its counts, in that of
 * IdPlace::within; `end` is last.
 * Numbers lie one after the other, arrays as a whole:
 *
 *     rows    id (i64), last step (i64), shows (f32), clicks (f32), weights (dim f32), state (f32)
 *     counts  of a table's entry rule: id (i64), last step (i64), sum (f64)
 *     block   of a dense parameter: values (f32), state (f32)
 */
enum class SectionKind : std::uint32_t { part = 1, rows = 2, block = 4, end = 5, counts = 6 };

/** Plain bytes. */
struct SectionHeader {
  static constexpr std::array<char, 8> kMagic{'t', 'u', 't', 't', 'i', 'p', 's', '1'};

  std::array<char, 8> magic = kMagic;
  SectionKind kind{};
  std::int32_t number = 0;  ///< of the table, or of the block, in the PartDescription
  std::int64_t count = 0;   ///< rows, numbers; `end`: sections before it
  std::int64_t bytes = 0;   ///< that follow this header
  /** Of rows and counts: the least and the greatest mix64(id), so that who wants others need not
   * read them. */
  std::uint64_t first_hash = 0;
  std::uint64_t last_hash = ~std::uint64_t{0};
  std::uint64_t payload_checksum = 0;
  std::uint64_t header_checksum = 0;  ///< of all before it, and of all headers before
};
static_assert(sizeof(SectionHeader) == 64);

/** `before`: the checksum of the header before; 0 of the first. */
std::uint64_t checksum_of(const SectionHeader& header, std::uint64_t before);

/** Bytes of what an entry rule has counted for an id, in a section. */
inline constexpr std::int64_t kCountBytes = 24;

/** What a file says of a table. What may be another when a job goes on is only to be shown. */
struct TableDescription {
  std::string name;
  std::int64_t dim = 0;
  std::string layout;  ///< the rule without its numbers: "adagrad, row_wise"
  std::string rule;    ///< with its numbers, which may be others
  std::string initial;
  std::uint64_t seed = 0;
  std::uint32_t split = 0;
  std::int64_t state_floats = 0;
  std::int64_t steps = 0;

  /** Bytes of a row in a section. */
  std::int64_t row_bytes() const { return 24 + 4 * (dim + state_floats); }
};

struct BlockDescription {
  std::string parameter;
  std::int64_t elements = 0;  ///< of the parameter
  std::string layout;
  std::string rule;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  std::int64_t state_floats = 0;

  std::int64_t bytes() const { return 4 * (count + state_floats); }
};

/** What a part says of itself before all else. */
struct PartDescription {
  int server = 0;
  int servers = 1;
  std::int64_t round = 0;
  std::vector<TableDescription> tables;
  std::vector<BlockDescription> blocks;
};

TableDescription describe(const Table& table);
/** A piece of a block, as if it were one of its own. */
BlockDescription describe(const OwnBlock& own, std::int64_t begin, std::int64_t count);

/** Arrays of as many elements as the block that the state of a rule begins with. */
std::int64_t state_arrays(const Rule& rule);

std::vector<std::byte> encode(const PartDescription& part);
/** Throws InvalidArgument naming `path` for what encode() does not make. */
PartDescription decode_part(std::span<const std::byte> bytes, const std::string& path);

/** Throws InvalidArgument that the file is damaged. */
[[noreturn]] void refuse_damaged(const std::string& path, const std::string& reason);

}  // namespace tutti::ps
