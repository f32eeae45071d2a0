// The memory of a table: a large range of addresses, of which memory is taken piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/available_memory.hpp"
#include "base/huge_pages.hpp"
#include "comm/shm/memory/segment.hpp"

namespace tutti::ps {

/**
 * A sparse object that is mapped once, with the largest size that it may ever have: so it grows
 * without a new mapping, and without telling who else has mapped it. Ranges that are taken have
 * huge pages as far as they cover them, and the system can.
 */
class Arena {
 public:
  /** A shared memory object (shm::segment_name()), or private memory if the name is empty. Throws
   * SystemError. */
  Arena(const std::string& name, std::int64_t bytes);
  /** What another Arena has made, for reading. Throws SystemError; ENOENT if there is none. */
  explicit Arena(const std::string& name);

  std::byte* base() const { return base_; }
  std::int64_t bytes() const { return bytes_; }
  /** Of memory that is taken. */
  std::int64_t taken() const { return taken_; }
  /** Whether all got huge pages that can have them; nothing while none can. */
  std::optional<bool> has_huge_pages() const { return has_huge_pages_; }

  /** Takes the memory of a range of whole pages that has none; it holds zeros. Throws SystemError
   * with the sizes if /dev/shm or the machine has not enough; touching it cannot fail later (of
   * private memory, unless others have taken all meanwhile). */
  void take(std::int64_t offset, std::int64_t bytes);
  /** Gives the memory of such a range back: it holds zeros then. */
  void give_back(std::int64_t offset, std::int64_t bytes) noexcept;
  /** Forked children do not get this memory: else the first to write a page would copy it. */
  void keep_from_children() noexcept;
  /** Removes the name; the memory stays. */
  void unlink();

  /** The most memory that this machine could give an Arena of that name. */
  static std::int64_t most_bytes(const std::string& name);

 private:
  void put_into_huge_pages(std::int64_t offset, std::int64_t bytes);

  shm::Segment segment_;  // none of private memory, and of who only reads: that keeps no descriptor
  std::optional<shm::NameGuard> name_;
  std::shared_ptr<shm::Mapping> mapping_;
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t taken_ = 0;
  std::optional<bool> has_huge_pages_;
  MemoryBudget budget_;
};

}  // namespace tutti::ps
