// Fuzzes the packets of sparse vectors: one host's, range by range.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

#include "comm/sparse/packet.hpp"
#include "comm/sparse/sum.hpp"
#include "fuzz/fuzzer.hpp"
#include "tutti/error.hpp"

namespace tutti::fuzz {
namespace {

constexpr std::size_t kMostPackets = 4;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;  // of memory for packets
constexpr std::int64_t kMostDense = std::int64_t{1} << 16;

struct Head {
  std::uint32_t packets = 0;  ///< modulo kMostPackets, plus 1
  std::uint32_t range = 0;    ///< indices of each, plus 1
  std::array<PacketSize, kMostPackets> sizes{};

  std::size_t count() const { return packets % kMostPackets + 1; }
  std::int64_t width() const {
    return std::min<std::int64_t>(std::int64_t{range} + 1,
                                  kMostSparse / static_cast<std::int64_t>(count()));
  }
};

Input packed(std::uint32_t packets, std::uint32_t range, std::uint32_t step) {
  Head head{packets - 1, range - 1, {}};
  PacketWriter writer;
  writer.clear();
  for (std::uint32_t i = 0; i < packets; ++i) {
    writer.begin_packet(std::int64_t{i} * range);
    for (std::uint32_t at = 0; at < range; at += 1 + (at * 7919U) % step) {
      writer.add(i * range + at, static_cast<float>(at) - 2.0F);
    }
    head.sizes[i] = writer.end_packet();
  }
  Input input;
  append(input, head);
  for (const std::byte byte : writer.bytes()) input.push_back(std::to_integer<std::uint8_t>(byte));
  return input;
}

}  // namespace

std::vector<Input> seeds() {
  return {packed(1, 1, 1),  packed(1, 1000, 1),   packed(2, 300, 9),
          packed(3, 65, 3), packed(4, 5000, 400), packed(2, 1U << 30U, 1U << 24U)};
}

/** The lengths follow from the widths of the groups: then what is inside decides. */
void mend(Input& input) {
  Parts parts(input);
  auto head = parts.number<Head>();
  for (std::size_t i = 0; i < head.count(); ++i) {
    PacketSize& size = head.sizes[i];
    size.count &= 0xFFF;
    size.bytes = 0;
    for (std::int64_t left = size.count; left > 0; left -= std::int64_t{kPacketGroup}) {
      const std::int64_t elements = std::min<std::int64_t>(left, kPacketGroup);
      const std::int64_t bytes =
          (elements * (parts.number<std::uint8_t>() % 64) + 7) / 8 + elements * 4;
      parts.take(static_cast<std::size_t>(bytes));
      size.bytes += 1 + bytes;
    }
  }
  if (input.size() >= sizeof head) std::memcpy(input.data(), &head, sizeof head);
}

namespace {

/** The packets of `head` that `parts` holds, in memory of exactly their length. */
struct Arrived {
  std::vector<SparsePacket> packets;
  std::int64_t count = 0;  ///< elements
  std::unique_ptr<std::byte[]> memory;

  Arrived(const Head& head, Parts& parts) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < head.count(); ++i) {
      const std::int64_t begin = static_cast<std::int64_t>(i) * head.width();
      packets.push_back({nullptr, head.sizes[i], begin, begin + head.width(), static_cast<int>(i)});
      check_size(packets.back());
      count += packets.back().size.count;
      bytes += packets.back().size.bytes;
    }
    if (bytes > kMostBytes) throw CommunicationError("more memory than this fuzzer gives");
    memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes + kPacketSlack));
    const auto arrived = parts.take(static_cast<std::size_t>(bytes));
    if (!arrived.empty()) std::memcpy(memory.get(), arrived.data(), arrived.size());
    const std::byte* at = memory.get();
    for (SparsePacket& packet : packets) {
      packet.data = at;
      at += packet.size.bytes;
    }
  }
};

struct Elements {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

/** As they are read, block by block. */
Elements read(const Arrived& arrived) {
  Elements all;
  const std::int64_t end = arrived.packets.back().end;
  PacketCursor cursor{std::span(arrived.packets)};
  while (cursor.next() != PacketCursor::kEnd) {
    cursor.take_below(cursor.next() + kSumBlock, [&](std::uint32_t index, float value) {
      expect(all.indices.empty() || index > all.indices.back(), "the indices do not ascend");
      expect(index < end, "an index is outside the vector");
      all.indices.push_back(index);
      all.values.push_back(value);
    });
  }
  expect(std::ssize(all.indices) == arrived.count, "elements are missing");
  return all;
}

/** What has been read makes a packet of the same elements. */
void check_packed_again(const Elements& all, std::int64_t end) {
  PacketWriter writer;
  writer.clear();
  writer.begin_packet(0);
  for (std::size_t i = 0; i < all.indices.size(); ++i) writer.add(all.indices[i], all.values[i]);
  SparsePacket again{nullptr, writer.end_packet(), 0, end, 0};
  again.data = writer.bytes().data();
  std::size_t next = 0;
  PacketCursor(std::span(&again, 1)).take_below(end, [&](std::uint32_t index, float value) {
    expect(index == all.indices[next], "another index");
    expect(std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(all.values[next++]),
           "another value");
  });
  expect(next == all.indices.size(), "fewer elements");
}

void decode(std::span<const std::uint8_t> data) {
  Parts parts(data);
  const auto head = parts.number<Head>();
  const Arrived arrived(head, parts);
  const Elements all = read(arrived);
  const std::int64_t end = arrived.packets.back().end;
  check_packed_again(all, end);
  if (end > kMostDense) return;
  std::vector<float> sums(static_cast<std::size_t>(end));
  PacketCursor source{std::span(arrived.packets)};
  sum_dense(std::span(&source, 1), sums.data(), 0, end, 1);
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  tutti::fuzz::decode({data, size});
  return 0;
} catch (const tutti::CommunicationError& error) {
  return tutti::fuzz::refused(error);
}
