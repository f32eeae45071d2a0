// Derives tickets by SipHash, word by word.
#include "comm/derived_ticket.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/siphash.hpp"

namespace tutti {
namespace {

constexpr std::size_t kWords = UniqueId::kBytes / sizeof(std::uint64_t);

/** A ticket whose every word is a hash of `data` and of its place. */
UniqueId hashed(const SipKey& key, std::vector<std::byte> data) {
  std::array<std::byte, UniqueId::kBytes> bytes;
  data.push_back({});
  for (std::size_t i = 0; i < kWords; ++i) {
    data.back() = static_cast<std::byte>(i);
    const std::uint64_t word = siphash(key, data);
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
  return UniqueId::from_bytes(bytes);
}

}  // namespace

UniqueId ticket_of_text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return hashed({}, {bytes.begin(), bytes.end()});
}

UniqueId derived_ticket(const UniqueId& base, std::uint64_t number) {
  // The last bytes are the key, so what is hashed does not contain it.
  const std::span<const std::byte> ticket(base.bytes());
  SipKey key;
  std::memcpy(&key, ticket.last(sizeof(key)).data(), sizeof(key));
  const auto rest = ticket.first(UniqueId::kBytes - sizeof(key));
  std::vector<std::byte> data(rest.begin(), rest.end());
  const auto counted = std::as_bytes(std::span(&number, 1));
  data.insert(data.end(), counted.begin(), counted.end());
  return hashed(key, std::move(data));
}

}  // namespace tutti
