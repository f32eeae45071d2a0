// The log of a rank, which may have gaps but ends nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file_descriptor.hpp"

namespace tutti::launch {

/**
 * A file to which the output of a rank is appended. What cannot be written, because the disk is
 * full for example, is left out; once there is room again, the file says how much is missing.
 */
class LogFile {
 public:
  /** Of an empty path there is no file, and nothing is missing. Makes the folder. */
  explicit LogFile(const std::filesystem::path& path);

  void write(std::string_view text);
  /** Why something could not be written for the first time; empty if that has not happened since
   * the last call. */
  std::string take_failure();

 private:
  /** Whether all of it was written. */
  bool append(std::string_view text);
  void fail(int error);

  FileDescriptor file_;
  std::uint64_t missing_ = 0;  // bytes, since something was written last
  bool failed_ = false;
  std::string reason_;
  std::string news_;
};

}  // namespace tutti::launch
