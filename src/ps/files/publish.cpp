// Makes a checkpoint of parts that are finished, and removes what no manifest names.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include "ps/files/checkpoint.hpp"
#include "ps/files/format.hpp"
#include "ps/files/input_file.hpp"
#include "ps/files/manifest.hpp"
#include "ps/files/part_reader.hpp"
#include "tutti/error.hpp"
#include "tutti/output_file.hpp"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;

PartEntry entry_of(const fs::path& path) {
  const InputFile file(path);
  SectionHeader end;
  const auto bytes = static_cast<std::int64_t>(sizeof end);
  if (file.bytes() < bytes) refuse_damaged(file.path(), "it is too short for a part");
  file.read(file.bytes() - bytes, std::as_writable_bytes(std::span(&end, 1)));
  if (end.kind != SectionKind::end) refuse_damaged(file.path(), "it has no end");
  return {.bytes = file.bytes(), .checksum = end.header_checksum};
}

/** Where workers were lost one server may have applied a round more than another. */
void check_rounds(const fs::path& folder, const Manifest& manifest) {
  const std::int64_t round = PartReader(folder, manifest, 0).description().round;
  for (int server = 1; server < std::ssize(manifest.parts); ++server) {
    const PartReader part(folder, manifest, server);
    require_round(part.path(), part.description().round, round);
  }
}

/** Removes the parts of attempts for which is_kept(attempt) does not hold. What cannot be removed
 * stays: it is in nobody's way. */
template <class IsKept>
void remove_parts(const fs::path& folder, const IsKept& is_kept) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path& path = entry.path();
    const std::string attempt = path.stem();
    if (path == parts_folder(folder, attempt) && !is_kept(attempt)) fs::remove_all(path, ignored);
  }
}

/** Empty: none. */
std::string published_attempt(const std::string& folder) {
  const fs::path manifest = fs::path(folder) / kManifestName;
  std::error_code error;
  const bool is_there = fs::exists(manifest, error);
  // What cannot be looked at may well name parts that are to stay.
  if (error) throw SystemError(manifest.string() + ": cannot be looked at", error.value());
  return is_there ? read_manifest(folder).attempt : std::string();
}

}  // namespace

bool parts_finished(const std::string& folder, const std::string& attempt, int servers) {
  std::error_code ignored;
  for (int server = 0; server < servers; ++server) {
    if (!fs::exists(parts_folder(folder, attempt) / part_name(server), ignored)) return false;
  }
  return true;
}

void publish_checkpoint(const std::string& folder, const std::string& attempt, int servers) {
  Manifest manifest{attempt, {}};
  for (int server = 0; server < servers; ++server) {
    manifest.parts.push_back(entry_of(parts_folder(folder, attempt) / part_name(server)));
  }
  check_rounds(folder, manifest);
  std::string before;
  try {
    before = published_attempt(folder);
  } catch (const Error&) {  // what is damaged is replaced, if it can be
  }
  OutputFile file(fs::path(folder) / kManifestName);
  file.write(text_of(manifest));
  file.commit();
  remove_parts(folder, [&](const std::string& other) {
    return other == attempt || (other != before && may_be_under_way(other, attempt));
  });
}

void discard_attempt(const std::string& folder, const std::string& attempt) {
  std::error_code ignored;
  if (published_attempt(folder) != attempt) fs::remove_all(parts_folder(folder, attempt), ignored);
}

void require_writable(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw SystemError(folder + ": cannot be made", error.value());
  // Rights alone do not tell: a file system may be read-only, or full.
  std::string probe = (fs::path(folder) / "probe-XXXXXX").string();
  if (::mkdtemp(probe.data()) == nullptr) {
    throw SystemError(folder + ": cannot be written to", errno);
  }
  ::rmdir(probe.c_str());
}

void discard_attempts(const std::string& folder) {
  remove_parts(folder, [published = published_attempt(folder)](const std::string& attempt) {
    return attempt == published;
  });
}

}  // namespace tutti::ps
