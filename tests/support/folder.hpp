// A folder for one test.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "tutti/error.hpp"

namespace tutti::test {

/** Nobody else has it; it is empty at first, and gone with this. */
class Folder {
 public:
  /** Throws SystemError. */
  explicit Folder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    path_ = parent / "tutti_test_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw SystemError("cannot make " + path_, errno);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const {
    return std::filesystem::path(path_) / name;
  }

 private:
  std::string path_;
};

}  // namespace tutti::test
