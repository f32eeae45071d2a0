// What a Store asks of whatever keeps the keys and values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tutti/error.hpp"

namespace tutti {

/** What `error` says without the system's own words, which another SystemError would add again. */
inline std::string text_before_number(const SystemError& error) {
  std::string text = error.what();
  const std::string number = ": " + std::generic_category().message(error.error_number());
  if (text.ends_with(number)) text.resize(text.size() - number.size());
  return text;
}

/** A table of keys and values, as one rank has it. What a call means, and what it throws,
 * tutti::Store says. All calls are safe from several threads. */
class KeyValues {
 public:
  virtual ~KeyValues() = default;

  virtual void set(std::string_view key, std::span<const std::byte> value) = 0;
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;

  enum class Take : std::uint8_t { copy, remove };
  /** Of a get, or of a pop. `look` is called now and then while it waits; what it throws ends the
   * wait. */
  virtual std::vector<std::byte> get(std::string_view key, Take take,
                                     std::chrono::milliseconds timeout,
                                     const std::function<void()>& look) = 0;
};

}  // namespace tutti
