// A checkpoint's manifest: the small file that says which parts belong together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::ps {

/** One server's file. */
struct PartEntry {
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< header_checksum of its last section
};

/**
 * "manifest" of a checkpoint's folder: which subfolder has the parts, and what they must be. It is
 * replaced as a whole, so that there is a whole checkpoint at any time on any file system; one in
 * the old place of another could only be put there by an exchange of folders, which not all can.
 */
struct Manifest {
  std::string attempt;           ///< its parts are in "<attempt>.tuttiparts"
  std::vector<PartEntry> parts;  ///< one a server
};

inline constexpr const char* kManifestName = "manifest";

/** The attempt of a job that is known by `which`; all of one job begin alike. */
std::string attempt_of_job(std::uint64_t job, std::string_view which);
/** Whether servers may be writing `other` while `attempt` is published: it is of the same job, but
 * of another worker, or what they begin when they have no workers left. */
bool may_be_under_way(std::string_view other, std::string_view attempt);
inline constexpr std::string_view kLastAttempt = "end";

/** Throws InvalidArgument for what is not a valid part of a file's name. */
void check_attempt(std::string_view attempt);
std::filesystem::path parts_folder(const std::filesystem::path& folder, std::string_view attempt);
/** "server-3". */
std::string part_name(int server);

std::string text_of(const Manifest& manifest);
/** Throws InvalidArgument naming `path` for what text_of() does not make. */
Manifest parse_manifest(std::string_view text, const std::string& path);
/** Reads that of a checkpoint. Throws InvalidArgument naming the file, SystemError. */
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace tutti::ps
