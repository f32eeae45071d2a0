// What keeps a process from starting, as the others are told.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::ps {

/** An exception as a value. */
struct Failure {
  enum class Kind : std::uint8_t { invalid_argument, system, lost, mismatch, other };
  Kind kind = Kind::other;
  int error_number = 0;    ///< of a SystemError
  std::vector<int> ranks;  ///< of a PeerLost
  std::string text;

  static Failure of(const std::exception_ptr& exception);
  /** The same, with who has it in front. */
  Failure at(const std::string& who) const;
  /** Throws it as it was. */
  [[noreturn]] void raise() const;

  /** For the way. */
  std::string encode() const;
  /** Of whatever has come. */
  static Failure decode(std::string_view bytes);
};

}  // namespace tutti::ps
