// A file of a checkpoint that is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/file_descriptor.hpp"

namespace tutti::ps {

/** A regular file, as long as it was when it was opened. */
class InputFile {
 public:
  /** Throws SystemError, InvalidArgument for what is no regular file. */
  explicit InputFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }
  /** Fills `bytes` from that offset on. Throws SystemError, InvalidArgument if the file has become
   * shorter. */
  void read(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  std::string path_;
  FileDescriptor file_;
  std::int64_t bytes_ = 0;
};

}  // namespace tutti::ps
