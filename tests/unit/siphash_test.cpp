// SipHash against its authors' values, and the names that come of it.
#include "base/siphash.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "comm/ticket_name.hpp"

namespace tutti {
namespace {

/** 0, 1, 2, ... */
template <std::size_t size>
std::array<std::byte, size> counting() {
  std::array<std::byte, size> bytes;
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(SipHash, HasTheValuesOfItsAuthors) {
  const SipKey key{0x0706050403020100ULL, 0x0F0E0D0C0B0A0908ULL};
  EXPECT_EQ(siphash(key, {}), 0x726FDB47DD0E0E31ULL);
  EXPECT_EQ(siphash(key, counting<1>()), 0x74F839C593DC67FDULL);
  EXPECT_EQ(siphash(key, counting<8>()), 0x93F5F5799A932462ULL);
  EXPECT_EQ(siphash(key, counting<15>()), 0xA129CA6149BE45E5ULL);
  EXPECT_EQ(siphash(key, counting<63>()), 0x958A324CEB064572ULL);
}

TEST(TicketName, IsAnotherForEachTicketAndPurpose) {
  const UniqueId id = UniqueId::create();
  std::set<std::string> names;
  for (const char* purpose : {"meeting", "claim", "allocation 1", "allocation 11"}) {
    names.insert(ticket_name(id, purpose));
    EXPECT_EQ(ticket_name(id, purpose), ticket_name(id, purpose));
  }
  for (std::size_t at = 0; at < UniqueId::kBytes; ++at) {
    auto bytes = id.bytes();
    bytes[at] ^= std::byte{1};
    names.insert(ticket_name(UniqueId::from_bytes(bytes), "meeting"));
  }
  EXPECT_EQ(names.size(), 4 + UniqueId::kBytes);
}

}  // namespace
}  // namespace tutti
