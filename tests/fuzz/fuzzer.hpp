// What the fuzzer of one decoder is: valid inputs to start from, and a function that takes any.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/**
 * Decodes one input, as libFuzzer calls it, too: 0 if the input was accepted, -1 (through
 * tutti::fuzz::refused) if it was refused as the decoder promises. Anything else, such as an
 * exception of another type or a wrong result (tutti::fuzz::expect), ends the process.
 */
// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace tutti::fuzz {

using Input = std::vector<std::uint8_t>;

/** Valid inputs, made by the encoder where there is one. */
std::vector<Input> seeds();
/** Makes right again what would have a mutated input refused at once: checksums and the like. */
void mend(Input& input);

/** The ways in which inputs were refused: messages without what depends on the input. */
inline std::set<std::string>& refusals() {
  static std::set<std::string> all;
  return all;
}

/** What LLVMFuzzerTestOneInput returns for an error that the decoder promises. The first `length`
 * characters of its message tell in which way. */
inline int refused(const std::exception& error, std::size_t length = 80) {
  std::string kind;
  bool quoted = false;
  for (const char character : std::string_view(error.what())) {
    if (character == '\'') quoted = !quoted;
    const auto byte = static_cast<unsigned char>(character);
    if (!quoted && std::isdigit(byte) == 0) kind += character;
  }
  constexpr std::size_t kMost = 1000;
  if (refusals().size() < kMost) refusals().insert(kind.substr(0, length));
  return -1;
}

/** A result that is wrong is a failure, like memory that is misused. */
inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong result: %s\n", what);
  std::abort();
}

/** Reads what the fuzzers themselves put in front of a decoder's bytes; zeros beyond the end. */
class Parts {
 public:
  explicit Parts(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::span<const std::uint8_t> part = take(sizeof value);
    if (!part.empty()) std::memcpy(&value, part.data(), part.size());
    return value;
  }
  /** The next `size` bytes, or as many as there are. */
  std::span<const std::uint8_t> take(std::size_t size) {
    const std::span<const std::uint8_t> part = bytes_.first(std::min(size, bytes_.size()));
    bytes_ = bytes_.subspan(part.size());
    return part;
  }
  std::span<const std::uint8_t> rest() { return take(bytes_.size()); }

 private:
  std::span<const std::uint8_t> bytes_;
};

/** Writes them. */
template <class T>
void append(Input& input, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  input.insert(input.end(), bytes, bytes + sizeof value);
}

inline Input input_of(std::string_view text) { return {text.begin(), text.end()}; }

}  // namespace tutti::fuzz
