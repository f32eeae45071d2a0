// How a bad argument is refused.
#pragma once

#include <sstream>

#include "tutti/error.hpp"

namespace tutti {

/** Throws InvalidArgument with a text of these parts. */
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw InvalidArgument(text.str());
}

}  // namespace tutti
