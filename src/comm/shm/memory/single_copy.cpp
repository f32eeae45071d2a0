// Reads the private memory of other processes.
#include "comm/shm/memory/single_copy.hpp"

#include <sys/uio.h>

#include <bit>
#include <cerrno>
#include <random>

namespace tutti::shm {

SingleCopy::SingleCopy(const Control& control, int rank, int size)
    : control_(control), rank_(rank), size_(size) {
  std::random_device random;
  token_ = std::uint64_t{random()} << 32U | random();
  RankSlot& slot = control_.slot(rank);
  slot.token = token_;
  slot.token_address = reinterpret_cast<std::uintptr_t>(&token_);
}

bool SingleCopy::reaches_all() {
  if (reach_ == Reach::unknown) {
    reach_ = Reach::all;
    for (int peer = 0; peer < size_; ++peer) {
      std::uint64_t found = 0;
      const RankSlot& slot = control_.slot(peer);
      if (peer != rank_ &&
          (read(peer, &found, slot.token_address, sizeof found) != 0 || found != slot.token)) {
        reach_ = Reach::none;
      }
    }
  }
  return reach_ == Reach::all;
}

int SingleCopy::read(int peer, void* to, std::uint64_t address, std::int64_t bytes) const {
  const pid_t process = control_.slot(peer).process.pid;
  auto* target = static_cast<std::byte*>(to);
  for (auto left = static_cast<std::size_t>(bytes); left > 0;) {
    const iovec here{target, left};
    const iovec there{std::bit_cast<void*>(address), left};
    const ssize_t copied = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0) return copied < 0 ? errno : EFAULT;
    left -= static_cast<std::size_t>(copied);
    target += copied;
    address += static_cast<std::uint64_t>(copied);
  }
  return 0;
}

}  // namespace tutti::shm
