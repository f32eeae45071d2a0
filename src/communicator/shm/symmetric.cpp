// Keeps the table of symmetric allocations.
#include "communicator/shm/symmetric.hpp"

#include <algorithm>
#include <functional>

namespace tutti::shm {

Buffer SymmetricMemory::add(std::shared_ptr<Mapping> mapping, std::int64_t stride,
                            std::int64_t bytes) {
  std::erase_if(regions_, [](const Region& region) { return region.mapping.expired(); });
  std::byte* own = mapping->base() + rank_ * stride;
  regions_.push_back({next_++, stride, own, mapping});
  return {own, bytes, std::move(mapping)};
}

Location SymmetricMemory::locate(const void* data, std::int64_t bytes) const {
  const auto* address = static_cast<const std::byte*>(data);
  for (const Region& region : regions_) {
    const std::less_equal<> not_after;  // a total order of pointers, unlike <=
    if (not_after(region.own, address) && not_after(address + bytes, region.own + region.stride) &&
        !region.mapping.expired()) {
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

}  // namespace tutti::shm
