// Fuzzes the files of a parameter server's checkpoints: manifests and parts.
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

#include "base/xxhash64.hpp"
#include "fuzz/fuzzer.hpp"
#include "ps/files/checkpoint.hpp"
#include "ps/files/format.hpp"
#include "ps/files/manifest.hpp"
#include "ps/unit/stored_job.hpp"
#include "support/folder.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/checkpoint.hpp"

namespace tutti::fuzz {
namespace {

namespace fs = std::filesystem;

// The first byte of an input tells which of the files it is.
constexpr std::uint8_t kManifest = 'm';
constexpr std::uint8_t kPart = 'p';
constexpr const char* kAttempt = "a";
constexpr std::array<std::size_t, 2> kCounting{2, 3};  // tables of entry rules that count

/** A folder in memory for the files of one input after the other. */
class Folder : public test::Folder {
 public:
  Folder() : test::Folder("/dev/shm") { fs::create_directories(part().parent_path()); }
  fs::path part() const { return ps::parts_folder(path(), kAttempt) / ps::part_name(0); }
};

ps::StoredJob job_of_one_server() {
  const std::vector<ps::TableSpec> tables{
      {.name = "item", .dim = 2, .rule = ps::Adam{}, .dict_size = 1000},
      {.name = "user", .dim = 1, .rule = ps::Adagrad{.row_wise = true}, .split = ps::Split::mod},
      {.name = "rare", .dim = 1, .entry = ps::AdmitCount{3}, .eviction = {.max_age = 40}},
      {.name = "shown", .dim = 1, .entry = ps::AdmitShowClick{}}};
  const std::vector<ps::DenseParameter> dense{
      {.name = "weight", .shape = {6}, .rule = ps::Adam{}, .initial = std::vector<float>(6, 1.0F)}};
  return {tables, dense, 1};
}

/** A push of ids that do not get a row by it, with shows of all. */
void push_counted(ps::StoredJob& job) {
  for (const std::size_t table : kCounting)
    job.push(static_cast<int>(table), {3, 6, 7, 1001, 123456789});
}

Input read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, std::span<const std::uint8_t> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

/** The header at a place of a part, if there is room for one. */
std::optional<ps::SectionHeader> header_at(std::span<const std::uint8_t> part, std::size_t at) {
  ps::SectionHeader header;
  if (part.size() < sizeof header || at > part.size() - sizeof header) return std::nullopt;
  std::memcpy(&header, &part[at], sizeof header);
  return header;
}

/** Checksums of sections, as far as their lengths make sense. */
void mend_part(std::span<std::uint8_t> part) {
  std::uint64_t before = 0;
  std::size_t at = 0;
  while (std::optional<ps::SectionHeader> header = header_at(part, at)) {
    const auto payload = std::as_bytes(part.subspan(at + sizeof *header));
    const auto left = std::ssize(payload);
    if (header->bytes < 0 || header->bytes > left) return;
    const auto bytes = static_cast<std::size_t>(header->bytes);
    header->payload_checksum = xxhash64(payload.first(bytes));
    before = header->header_checksum = checksum_of(*header, before);
    std::memcpy(&part[at], &*header, sizeof *header);
    at += sizeof *header + bytes;
  }
}

/** The manifest that this part wants. */
ps::Manifest manifest_of(std::span<const std::uint8_t> part) {
  ps::PartEntry entry{.bytes = std::ssize(part)};
  if (part.size() >= sizeof(ps::SectionHeader)) {
    entry.checksum = header_at(part, part.size() - sizeof(ps::SectionHeader))->header_checksum;
  }
  return {kAttempt, {entry}};
}

void check_counts(const ps::Table& table) {
  const std::vector<ps::StoredCount> counts = table.counts_between(0, ~std::uint64_t{0});
  expect(std::ssize(counts) == table.count_of_counts(), "counts out of their places");
  for (const ps::StoredCount& count : counts)
    expect(std::isfinite(count.sum) && count.sum >= 0, "a count that is none");
}

int run_manifest(std::string_view text) {
  const ps::Manifest manifest = ps::parse_manifest(text, "the manifest");
  expect(ps::text_of(manifest) == text, "a manifest that is written otherwise than it was read");
  const std::string folder = ps::parts_folder("/x", manifest.attempt).lexically_normal();
  expect(folder.starts_with("/x/") && folder.find('/', 3) == std::string::npos, "a way out");
  return 0;
}

int run_part(std::span<const std::uint8_t> part) {
  static const Folder folder;
  static std::optional<ps::StoredJob> job;
  if (!job) job.emplace(job_of_one_server());
  write(folder.part(), part);
  const std::string manifest = ps::text_of(manifest_of(part));
  write(folder / ps::kManifestName, input_of(manifest));
  const auto dense = job->dense_values();
  bool accepted = false;
  try {
    job->load(folder.path());
    accepted = true;
  } catch (const InvalidArgument&) {
    for (const ps::Table& table : job->server(0).tables) {
      expect(table.rows() == 0, "a refused checkpoint has left rows");
      expect(table.count_of_counts() == 0, "a refused checkpoint has left counts");
    }
    expect(job->dense_values() == dense, "a refused checkpoint has changed parameters");
  }
  if (accepted) {
    job->push(0, {1, 2, 500, 999});  // what was loaded can be trained
    job->push(1, {-1, 4});
    for (const std::size_t table : kCounting) check_counts(job->server(0).tables[table]);
    push_counted(*job);
    job->push_dense(1);
    job.reset();  // what it has got is in no other input's way
  }
  const ps::CheckpointContents contents = ps::inspect_checkpoint(folder.path());
  expect(contents.servers == 1, "servers");
  return accepted ? 0 : -1;
}

}  // namespace

std::vector<Input> seeds() {
  const Folder folder;
  ps::StoredJob job = job_of_one_server();
  job.push(0, {1, 2, 3, 500, 999});
  job.push(1, {-1, 4});
  push_counted(job);
  for (const std::size_t table : kCounting)
    expect(job.server(0).tables[table].count_of_counts() > 0, "a seed without counts");
  job.push_dense(1);
  job.save(folder.path(), kAttempt);
  Input part = read(folder.part());
  part.insert(part.begin(), kPart);
  Input manifest = input_of(ps::text_of({"some-attempt_7", {{1000, 17}, {64, ~0ULL}}}));
  manifest.insert(manifest.begin(), kManifest);
  return {part, manifest};
}

void mend(Input& input) {
  if (input.empty()) return;
  if (input[0] != kManifest) return mend_part(std::span(input).subspan(1));
  // The last line is the checksum of those before.
  constexpr std::string_view kWord = "checksum ";
  const std::string text(input.begin() + 1, input.end());
  const std::size_t at = text.rfind(kWord);
  if (at == std::string::npos) return;
  char sum[17];
  std::snprintf(
      sum, sizeof sum, "%016llx",
      static_cast<unsigned long long>(xxhash64(std::as_bytes(std::span(text).first(at)))));
  const std::string mended = text.substr(0, at) + std::string(kWord) + sum + "\n";
  input.resize(1);
  input.insert(input.end(), mended.begin(), mended.end());
}

}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  if (size == 0) return -1;
  const auto rest = std::span(data, size).subspan(1);
  if (data[0] != tutti::fuzz::kManifest) return tutti::fuzz::run_part(rest);
  return tutti::fuzz::run_manifest({reinterpret_cast<const char*>(rest.data()), rest.size()});
} catch (const tutti::InvalidArgument& error) {
  return tutti::fuzz::refused(error);
}
