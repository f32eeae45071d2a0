// Writes and reads manifests, a few lines of text.
#include "ps/files/manifest.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "base/xxhash64.hpp"
#include "ps/files/format.hpp"
#include "ps/files/input_file.hpp"

namespace tutti::ps {
namespace {

constexpr std::string_view kTitle = "tutti parameter server checkpoint, version 1";
constexpr std::int64_t kMostBytes = 64 << 20;

std::string hexadecimal(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string checksum_line(std::string_view text) {
  return "checksum " + hexadecimal(xxhash64(std::as_bytes(std::span(text)))) + "\n";
}

bool is_attempt(std::string_view attempt) {
  constexpr std::string_view kOthers = "-_";
  return !attempt.empty() && attempt.size() <= 64 &&
         std::all_of(attempt.begin(), attempt.end(), [&](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  kOthers.find(c) != std::string_view::npos;
         });
}

/** Takes lines and words off a text. */
class Words {
 public:
  Words(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  void expect(std::string_view word) {
    if (!text_.starts_with(word)) fail();
    text_.remove_prefix(word.size());
  }
  /** What comes before `end`, which is taken as well. */
  std::string_view until(char end) {
    const std::size_t at = text_.find(end);
    if (at == std::string_view::npos) fail();
    const std::string_view word = text_.substr(0, at);
    text_.remove_prefix(at + 1);
    return word;
  }
  template <class Number>
  Number number_until(char end) {
    const std::optional<Number> number = parse_number<Number>(until(end));
    if (!number || *number < 0) fail();
    return *number;
  }
  bool at(std::string_view word) const { return text_.starts_with(word); }
  bool at_end() const { return text_.empty(); }
  [[noreturn]] void fail() const { refuse_damaged(path_, "it is no manifest"); }

 private:
  std::string_view text_;
  const std::string& path_;
};

}  // namespace

void check_attempt(std::string_view attempt) {
  if (!is_attempt(attempt)) refuse("attempt is '", attempt, "', not letters, digits, '-' and '_'");
}

std::string attempt_of_job(std::uint64_t job, std::string_view which) {
  return std::to_string(job) + "-" + std::string(which);
}

bool may_be_under_way(std::string_view other, std::string_view attempt) {
  const auto job_of = [](std::string_view one) { return one.substr(0, one.find('-')); };
  const auto worker_of = [](std::string_view one) { return one.substr(0, one.rfind('-')); };
  return job_of(other) == job_of(attempt) && worker_of(other) != worker_of(attempt);
}

std::filesystem::path parts_folder(const std::filesystem::path& folder, std::string_view attempt) {
  return folder / (std::string(attempt) + ".tuttiparts");
}

std::string part_name(int server) { return "server-" + std::to_string(server); }

std::string text_of(const Manifest& manifest) {
  std::string text = std::string(kTitle) + "\nattempt " + manifest.attempt + "\n";
  for (const PartEntry& part : manifest.parts) {
    text += "part " + std::to_string(part.bytes) + " " + std::to_string(part.checksum) + "\n";
  }
  return text + checksum_line(text);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  Manifest manifest;
  Words words(text, path);
  words.expect(kTitle);
  words.expect("\nattempt ");
  manifest.attempt = words.until('\n');
  if (!is_attempt(manifest.attempt)) words.fail();
  while (words.at("part ")) {
    words.expect("part ");
    PartEntry& part = manifest.parts.emplace_back();
    part.bytes = words.number_until<std::int64_t>(' ');
    part.checksum = words.number_until<std::uint64_t>('\n');
  }
  // The same text comes of it, checksum and all, or it is not what was written.
  if (manifest.parts.empty() || text_of(manifest) != text) {
    refuse_damaged(path, "its checksum is another");
  }
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const InputFile file(folder / kManifestName);
  if (file.bytes() > kMostBytes) refuse_damaged(file.path(), "it is too long for a manifest");
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return parse_manifest(text, file.path());
}

}  // namespace tutti::ps
