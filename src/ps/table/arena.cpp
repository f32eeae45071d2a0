// Maps the memory of tables, and takes it piece by piece.
#include "ps/table/arena.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "base/available_memory.hpp"
#include "base/memory.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

std::shared_ptr<shm::Mapping> map_private(std::int64_t bytes) {
  void* base = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw SystemError("cannot map " + std::to_string(bytes) + " bytes of memory", errno);
  }
  return std::make_shared<shm::Mapping>(static_cast<std::byte*>(base), bytes);
}

void ask_for_huge_pages(std::byte* from, std::int64_t bytes) {
  // Where the kernel has none to give, small ones do.
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
}

Arena::Arena(const std::string& name) : segment_(shm::Segment::open(name)) {
  if (!segment_) throw SystemError("cannot open shared memory " + name, ENOENT);
  mapping_ = segment_.map();
  base_ = mapping_->base();
  bytes_ = mapping_->bytes();
  ask_for_huge_pages(base_, bytes_);
}

void Arena::take(std::int64_t offset, std::int64_t bytes) {
  budget_.spend(bytes);
  if (segment_) segment_.reserve(offset, bytes);
  // Not for smaller ranges: private memory would be taken where it is not needed.
  if (offset % kHugePage == 0 && bytes % kHugePage == 0) ask_for_huge_pages(base_ + offset, bytes);
  taken_ += bytes;
}

void Arena::give_back(std::int64_t offset, std::int64_t bytes) noexcept {
  if (segment_) {
    segment_.give_back(offset, bytes);
  } else if (::madvise(base_ + offset, static_cast<std::size_t>(bytes), MADV_DONTNEED) != 0) {
    zero_bytes(base_ + offset, bytes);  // it costs memory, but nothing else
  }
  taken_ -= bytes;
}

void Arena::unlink() { name_.reset(); }

std::int64_t Arena::most_bytes(const std::string& name) {
  return name.empty() ? physical_memory() : shared_memory_size();
}

}  // namespace tutti::ps
