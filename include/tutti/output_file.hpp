// Files that replace what was under their name as a whole, for checkpoints, logs and results.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace tutti {

/**
 * A new file, written beside `path` under a random name, that takes its place when it is committed.
 * After a crash at any moment `path` is the old file or the new one. Nothing that others have put
 * there is written to. Unless it is committed, the new file is removed by the destructor.
 */
class OutputFile {
 public:
  /**
   * Creates the file, with the permissions of this user's file that it replaces, or else as the
   * umask allows. Throws InvalidArgument if `path` is a symbolic link, a folder, a device or
   * whatever else is no regular file, SystemError if the folder is missing or not to be written to.
   * To make and destroy one is to ask whether one may.
   */
  explicit OutputFile(const std::filesystem::path& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  ~OutputFile();

  /** Appends, at once. Throws SystemError. */
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  /**
   * Makes what was written durable, then renames the file to `path`, where what is written later
   * can be read as it comes. Once. Throws SystemError.
   */
  void commit();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
