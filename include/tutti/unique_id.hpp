// The ticket that admits a rank to a communicator.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace tutti {

/**
 * A random ticket of 128 bytes: the processes that hold it, and no others, may meet in one
 * communicator, once: as long as that lives, and in the processes that were in it for ever, the
 * ticket is refused. One process makes it and hands it to the ranks through a fork, a pipe, an
 * environment variable or a pickle. Making one starts no thread and touches no device, so the
 * process may fork afterwards.
 */
class UniqueId {
 public:
  static constexpr std::size_t kBytes = 128;

  /** A new ticket from the kernel's random numbers. Throws SystemError if there are none. */
  static UniqueId create();
  /** The ticket that to_string() gave. Throws InvalidArgument on anything else. */
  static UniqueId parse(std::string_view text);
  /** A ticket from its bytes, for a binding that pickles them. */
  static UniqueId from_bytes(const std::array<std::byte, kBytes>& bytes) { return UniqueId(bytes); }

  /** 256 lower-case hexadecimal digits. */
  std::string to_string() const;
  const std::array<std::byte, kBytes>& bytes() const { return bytes_; }

  friend bool operator==(const UniqueId&, const UniqueId&) = default;

 private:
  explicit UniqueId(const std::array<std::byte, kBytes>& bytes) : bytes_(bytes) {}
  std::array<std::byte, kBytes> bytes_;
};

}  // namespace tutti
