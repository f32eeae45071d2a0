// The command lines of programs that inject faults.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/refuse.hpp"
#include "base/text.hpp"

namespace tutti::test {

/** The value of option `name`. Throws InvalidArgument. */
template <class Number>
Number number_of(std::string_view name, std::string_view value) {
  const auto found = parse_number<Number>(value);
  if (!found) refuse(name, " has '", value, "', but must be a number from 0 on");
  return *found;
}

/** Gives take() each option and its value, and hears whether there is such an option. False where
 * help is asked for instead. Throws InvalidArgument. */
template <class Take>
bool take_options(std::span<char* const> arguments, const Take& take) {
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const std::string_view name = arguments[i];
    if (name == "--help" || name == "-h") return false;
    if (i + 1 == arguments.size()) refuse(name, " lacks a value");
    if (!take(name, std::string(arguments[i + 1]))) {
      refuse("unknown option '", name, "', see --help");
    }
  }
  return true;
}

}  // namespace tutti::test
