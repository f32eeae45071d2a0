// Writes the file of a part on a thread of its own, so that a server never waits for the disk.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/memory.hpp"
#include "ps/files/format.hpp"

namespace tutti::ps {

/** Room for a section, header included, that keeps its memory. */
class SectionBuffer {
 public:
  /** Room for the next arrays, in the order in which they are asked for. */
  void begin(std::int64_t bytes) {
    const std::size_t needed = sizeof(SectionHeader) + static_cast<std::size_t>(bytes);
    if (bytes_.size() < needed) bytes_.resize(needed);
    end_ = sizeof(SectionHeader);
  }
  template <class T>
  T* next(std::int64_t count) {
    T* const array = reinterpret_cast<T*>(bytes_.data() + end_);
    end_ += static_cast<std::size_t>(count) * sizeof(T);
    return array;
  }
  template <class T>
  void append(std::span<const T> array) {
    copy_bytes(next<T>(std::ssize(array)), array.data(),
               static_cast<std::int64_t>(array.size_bytes()));
  }
  std::span<const std::byte> payload() const { return whole().subspan(sizeof(SectionHeader)); }
  std::span<const std::byte> seal(const SectionHeader& header) {
    copy_bytes(bytes_.data(), &header, sizeof header);
    return whole();
  }

 private:
  std::span<const std::byte> whole() const { return std::span(bytes_).first(end_); }

  std::vector<std::byte> bytes_;
  std::size_t end_ = 0;
};

/**
 * Sections are written in the order in which they are handed over, under a name that is not yet the
 * part's; what fails, or is not wanted, leaves no file. What fails is thrown by every call that
 * waits.
 */
class PartOutput {
 public:
  /** `file` will be in a folder that lies in the checkpoint's; both are made. Throws SystemError if
   * there can be no thread. */
  explicit PartOutput(std::filesystem::path file);
  PartOutput(const PartOutput&) = delete;
  PartOutput& operator=(const PartOutput&) = delete;
  /** Waits until has_stopped(). */
  ~PartOutput();

  /** Whether buffer() would not wait. */
  bool has_room() const;
  /** A buffer for the next section: waits until there is one. */
  SectionBuffer buffer();
  /** Hands over a section, whose checksums are still to be computed. */
  void write(SectionBuffer section, const SectionHeader& header);
  /** All has been handed over: is to be on the disk, and to have the part's name. */
  void finish();
  /** Waits until that is so. */
  void wait();
  /** Nobody wants the rest. */
  void stop();
  /** Whether all is done, or will never be. */
  bool has_stopped() const;

 private:
  /** Half of them are written while the others are filled. */
  static constexpr int kBuffers = 16;
  struct Section {
    SectionBuffer buffer;
    SectionHeader header;
  };
  class File;

  void run();
  /** All sections that wait; none: the last has been taken, or nobody wants the rest. */
  bool take(std::deque<Section>& sections);
  void give_back(std::deque<Section>& sections);
  bool is_wanted() const;
  void throw_failure() const;

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Section> waiting_;
  std::vector<SectionBuffer> free_;
  bool all_there_ = false;
  bool unwanted_ = false;
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // uses all of the others
};

}  // namespace tutti::ps
