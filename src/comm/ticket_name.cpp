// Hashes tickets to names.
#include "comm/ticket_name.hpp"

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "base/siphash.hpp"

namespace tutti {

std::string ticket_name(const UniqueId& id, std::string_view purpose) {
  // The last bytes are the key, so what is hashed does not contain it.
  const std::span<const std::byte> ticket(id.bytes());
  const auto hashed = ticket.first(UniqueId::kBytes - sizeof(SipKey));
  SipKey key;
  std::memcpy(&key, ticket.last(sizeof(SipKey)).data(), sizeof(SipKey));
  std::vector<std::byte> text(hashed.begin(), hashed.end());
  for (const char character : purpose) text.push_back(static_cast<std::byte>(character));

  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(siphash(key, text)));
  return std::string(kNamePrefix) + digits.data();
}

}  // namespace tutti
