// A file of trace events that several processes write to.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_descriptor.hpp"

namespace tutti::record {

/**
 * A trace in the JSON format of Chrome and Perfetto
 * (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). It is complete after
 * every append, whoever dies afterwards: each puts its events in front of the brackets at the end,
 * under a lock that the kernel takes back from the dead. So nothing has to be merged.
 */
class TraceFile {
 public:
  /** Puts a new trace in place of `path`; `run` tells it from others. Throws as OutputFile does. */
  static void create(const std::filesystem::path& path, std::string_view run);
  /** The trace of `run`; nothing if `path` is something else, as on a host with other disks. */
  static std::optional<TraceFile> open(const std::filesystem::path& path, std::string_view run);

  /** Appends events: objects, with a comma and the end of a line between them. Whether it could,
   * within a second. */
  bool append(std::string_view events);

 private:
  explicit TraceFile(FileDescriptor file) : file_(std::move(file)) {}
  /** Where the events end. What a writer that was killed has left half-written is cut off. */
  std::optional<std::int64_t> find_end();

  FileDescriptor file_;
};

}  // namespace tutti::record
