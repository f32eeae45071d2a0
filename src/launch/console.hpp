// The launcher's own stdout and stderr, which never hold it up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_descriptor.hpp"

namespace tutti::launch {

/**
 * Where output goes: a terminal, a pipe, a file. Keeps short texts until flush(), of long ones what
 * is not taken now. A terminal that does not keep up misses some of it; the others are waited for
 * by who asks full().
 */
class Sink {
 public:
  /** Of descriptor 1 or 2. */
  explicit Sink(int descriptor);

  void write(std::string_view text);
  /** Empties the line that a terminal's cursor is on. */
  void erase_line() {
    write("\r\033[K");
    at_line_start_ = true;
  }
  /** Writes what was kept, as far as it is taken. */
  void flush();

  int descriptor() const { return own_ ? own_.get() : descriptor_; }
  bool terminal() const { return terminal_; }
  /** How many characters fit in a line of the terminal. */
  std::size_t columns() const;
  /** Whether both are the same terminal or file. */
  bool same_as(const Sink& other) const;
  /** From now on misses what it does not take. */
  void hurry() { skips_ = true; }
  std::size_t unwritten() const { return kept_.size() - written_; }
  /** Whether to wait until it has taken more. */
  bool full() const { return !skips_ && !roomy(); }
  /** Nobody reads it any more, or its disk is full: what is written is lost. */
  bool broken() const { return broken_; }
  /** Whether what was written last ended a line. */
  bool at_line_start() const { return at_line_start_; }

 private:
  static constexpr std::size_t kMostKept = 1U << 20;
  static constexpr std::size_t kLong = 4 << 10;  // worth a system call of its own

  bool roomy() const { return unwritten() <= kMostKept; }

  /** How many bytes were taken. */
  std::size_t write_some(std::string_view text);

  int descriptor_;
  FileDescriptor own_;  // of a pipe or a terminal, so that others' are not made non-blocking
  bool socket_ = false;
  bool terminal_ = false;
  bool skips_ = false;  // what there is no room for
  bool broken_ = false;
  bool at_line_start_ = true;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
  std::string kept_;
  std::size_t written_ = 0;    // of kept_
  std::uint64_t skipped_ = 0;  // bytes, for which there was no room
};

}  // namespace tutti::launch
