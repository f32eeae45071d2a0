// Keeps the table of symmetric allocations.
#include "comm/shm/memory/symmetric.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/page_size.hpp"

namespace tutti::shm {
namespace {

constexpr std::int64_t kCopied = std::int64_t{4} << 20U;  // bytes that are there twice at a time

/** Other threads may write at the same time. Not an operation that changes nothing by its nature:
 * compilers make a mere load of that. */
void write_as_it_is(std::byte& place) noexcept {
  const std::atomic_ref byte(place);
  std::byte seen = byte.load(std::memory_order_relaxed);
  while (!byte.compare_exchange_weak(seen, seen, std::memory_order_relaxed)) {
  }
}

void warn_still_shared(std::int64_t bytes) noexcept {
  try {
    const std::string reason = std::strerror(errno);
    log(LogLevel::warn, std::to_string(bytes) +
                            " bytes of symmetric memory cannot be made this rank's own after the "
                            "failure; a rank that was declared lost may still write into them: " +
                            reason);
  } catch (const std::exception&) {  // out of memory
  }
}

}  // namespace

Buffer SymmetricMemory::add(Allocation allocation, std::int64_t stride, std::int64_t bytes) {
  auto shared = std::make_shared<Allocation>(std::move(allocation));
  std::byte* own = shared->mapping->base() + rank_ * stride;
  const std::lock_guard lock(changing_);
  std::erase_if(regions_, [](const Region& region) { return region.allocation.expired(); });
  regions_.push_back({next_++, stride, own, shared});
  if (isolated_) isolate(regions_.back());
  return {own, bytes, std::move(shared)};
}

Location SymmetricMemory::locate(const void* data, std::int64_t bytes) const {
  const auto* address = static_cast<const std::byte*>(data);
  for (const Region& region : regions_) {
    const std::less_equal<> not_after;  // a total order of pointers, unlike <=
    if (not_after(region.own, address) && not_after(address + bytes, region.own + region.stride) &&
        !region.allocation.expired()) {
      return {region.number, address - region.own};
    }
  }
  return {};
}

std::byte* SymmetricMemory::resolve(int peer, const Location& location) const {
  const auto region = std::find_if(regions_.begin(), regions_.end(), [&](const Region& entry) {
    return entry.number == location.region;
  });
  return region->own + (peer - rank_) * region->stride + location.offset;
}

void SymmetricMemory::isolate() noexcept {
  const std::lock_guard lock(changing_);
  if (std::exchange(isolated_, true)) return;
  for (const Region& region : regions_) isolate(region);
}

/**
 * A private mapping of the same object takes the place of the shared one in one step, and writing
 * to a page makes it a copy: so other threads may go on writing, and nothing of theirs is lost. No
 * page is left out: one that nobody has touched would show what others write into it. The shared
 * pages are given back as soon as they have been copied, by another mapping of them: it takes no
 * more memory than there was.
 */
void SymmetricMemory::isolate(const Region& region) const noexcept {
  const auto allocation = region.allocation.lock();
  if (!allocation || !allocation->copy) return;
  const auto length = static_cast<std::size_t>(region.stride);
  Mapping& copy = *allocation->copy;
  void* const again = ::mremap(region.own, 0, length, MREMAP_MAYMOVE);  // no bytes: a duplicate
  const bool both = again != MAP_FAILED;
  const Mapping shared(both ? static_cast<std::byte*>(again) : nullptr, region.stride);
  ::munlock(copy.base(), length);  // pages that are locked would be copied before they are in place
  if (::mprotect(copy.base(), length, PROT_READ | PROT_WRITE) != 0 ||
      ::mremap(copy.base(), length, length, MREMAP_MAYMOVE | MREMAP_FIXED, region.own) ==
          MAP_FAILED) {
    warn_still_shared(region.stride);
    return;
  }
  copy.release();
  const std::int64_t page_bytes = page_size();
  for (std::int64_t begin = 0; begin < region.stride; begin += kCopied) {
    const std::int64_t end = std::min(begin + kCopied, region.stride);
    for (std::int64_t page = begin; page < end; page += page_bytes) {
      write_as_it_is(region.own[page]);
    }
    // Where the system does not give them back, only memory is lost.
    if (both) ::madvise(shared.base() + begin, static_cast<std::size_t>(end - begin), MADV_REMOVE);
  }
}

}  // namespace tutti::shm
