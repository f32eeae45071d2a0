// Maps the memory of tables, and takes it piece by piece.
#include "ps/table/arena.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "base/available_memory.hpp"
#include "base/memory.hpp"
#include "base/page_size.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

std::shared_ptr<shm::Mapping> map_private(std::int64_t bytes) {
  void* base =
      map_aligned(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (base == MAP_FAILED) {
    throw SystemError("cannot map " + std::to_string(bytes) + " bytes of memory", errno);
  }
  return std::make_shared<shm::Mapping>(static_cast<std::byte*>(base), bytes);
}

/** What is touched from now on gets huge pages if the system is set to that. */
void ask_for_huge_pages(std::byte* from, std::int64_t bytes) {
  ::madvise(from, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
}

}  // namespace

Arena::Arena(const std::string& name, std::int64_t bytes) : bytes_(bytes) {
  if (name.empty()) {
    mapping_ = map_private(bytes);
  } else {
    segment_ = shm::Segment::create(name);
    name_.emplace(name);
    segment_.resize(bytes);
    mapping_ = segment_.map();
  }
  base_ = mapping_->base();
  if (segment_) ask_for_huge_pages(base_, bytes_);
}

Arena::Arena(const std::string& name) {
  const shm::Segment segment = shm::Segment::open(name);
  if (!segment) throw SystemError("cannot open shared memory " + name, ENOENT);
  mapping_ = segment.map(shm::Access::read_only);
  base_ = mapping_->base();
  bytes_ = mapping_->bytes();
  ask_for_huge_pages(base_, bytes_);
}

void Arena::take(std::int64_t offset, std::int64_t bytes) {
  budget_.spend(bytes);
  try {
    put_into_huge_pages(offset, bytes);
    if (segment_) segment_.reserve(offset, bytes);
  } catch (const SystemError&) {
    segment_.give_back(offset, bytes);
    throw;
  }
  taken_ += bytes;
}

void Arena::put_into_huge_pages(std::int64_t offset, std::int64_t bytes) {
  const std::int64_t first = round_up(offset, kHugePage);
  const std::int64_t end = (offset + bytes) / kHugePage * kHugePage;
  if (first >= end) return;
  // Private memory that is taken in smaller ranges must not get more than it needs.
  if (!segment_) ask_for_huge_pages(base_ + first, end - first);
  // One small page each is enough to begin with, and less work than to fill all.
  for (std::int64_t page = first; page < end; page += kHugePage) {
    if (segment_) segment_.reserve(page, page_size());
    base_[page] = std::byte{0};
  }
  const bool came = tutti::put_into_huge_pages(base_ + first, end - first);
  has_huge_pages_ = has_huge_pages_.value_or(true) && came;
}

void Arena::give_back(std::int64_t offset, std::int64_t bytes) noexcept {
  if (segment_) {
    segment_.give_back(offset, bytes);
  } else if (::madvise(base_ + offset, static_cast<std::size_t>(bytes), MADV_DONTNEED) != 0) {
    zero_bytes(base_ + offset, bytes);  // it costs memory, but nothing else
  }
  taken_ -= bytes;
}

void Arena::keep_from_children() noexcept {
  ::madvise(base_, static_cast<std::size_t>(bytes_), MADV_DONTFORK);
}

void Arena::unlink() { name_.reset(); }

std::int64_t Arena::most_bytes(const std::string& name) {
  return name.empty() ? physical_memory() : shared_memory_size();
}

}  // namespace tutti::ps
