// The mark of a ticket that is in use: an abstract socket, which rank 0 holds.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>

#include "comm/shm/memory/segment.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::shm {

/**
 * The address of a ticket's socket. Bound by rank 0 after it created the segment and held as long
 * as its communicator lives, it tells a used ticket from one that nobody came with yet; the kernel
 * drops it with the process: or with its last child that has it, which is told by the process that
 * bound it. A socket of another user means nothing, unless so many have connected
 * to it that nobody can tell whose it is: nobody knows the address of a ticket that is not used.
 */
class ClaimAddress {
 public:
  explicit ClaimAddress(const UniqueId& id);

  /** Binds it. Nothing if a process of this user holds it, a closed descriptor if one of another
   * user does, or a process that has ended did. Throws SystemError. */
  std::optional<FileDescriptor> claim() const;
  /** Whether a process of this user holds it, or one whose user cannot be told. Does not block.
   * Throws SystemError. */
  bool claimed() const;

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  sockaddr_un address_{};
  socklen_t bytes_ = 0;
};

}  // namespace tutti::shm
