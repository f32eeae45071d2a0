// Fuzzes the texts of tickets.
#include "fuzz/fuzzer.hpp"
#include "tutti/error.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::fuzz {

std::vector<Input> seeds() {
  std::array<std::byte, UniqueId::kBytes> bytes{};
  std::vector<Input> all{input_of(UniqueId::from_bytes(bytes).to_string())};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(3 * i);
  all.push_back(input_of(UniqueId::from_bytes(bytes).to_string()));
  return all;
}

/** As many characters as a ticket has. */
void mend(Input& input) { input.resize(2 * UniqueId::kBytes, '7'); }

}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  using tutti::fuzz::expect;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto id = tutti::UniqueId::parse(text);
  expect(id.to_string() == text, "the ticket has another text");
  expect(tutti::UniqueId::from_bytes(id.bytes()) == id, "the ticket has other bytes");
  return 0;
} catch (const tutti::InvalidArgument& error) {
  return tutti::fuzz::refused(error);
}
