// Payloads that travel between hosts: as they were sent, as short as they can be, or refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ps/link/codec.hpp"
#include "support/thrown.hpp"
#include "tutti/dtype.hpp"

namespace tutti::ps::test {
namespace {

using tutti::test::text_of;

/** Ids, then rows, then as many shows as ids. */
std::vector<std::byte> payload_of(const std::vector<std::int64_t>& ids,
                                  const std::vector<float>& values,
                                  const std::vector<float>& shows) {
  std::vector<std::byte> payload;
  const auto add = [&](const auto& elements) {
    const auto bytes = std::as_bytes(std::span(elements));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
  };
  add(ids);
  add(values);
  add(shows);
  return payload;
}

struct Arrived {
  std::vector<std::byte> payload;
  std::int64_t ids_bytes = 0;
  std::int64_t all_bytes = 0;
};

/** What comes of a payload that travels. */
Arrived travel(const PayloadShape& shape, const std::vector<std::byte>& payload, WireFormat wire) {
  TravellingPayload sent(shape, payload, wire);
  TravellingPayload received(shape, sent.ids_bytes(), wire);
  Arrived arrived{{}, sent.ids_bytes(), 0};
  for (std::size_t i = 0; i < 3; ++i) {
    const iovec& from = sent.pieces()[i];
    const iovec& to = received.pieces()[i];
    EXPECT_EQ(from.iov_len, to.iov_len);
    if (from.iov_len > 0) std::memcpy(to.iov_base, from.iov_base, from.iov_len);
    arrived.all_bytes += static_cast<std::int64_t>(from.iov_len);
  }
  const PayloadMemory memory = received.decode();
  arrived.payload.assign(memory.bytes().begin(), memory.bytes().end());
  return arrived;
}

RequestHeader push_of(std::int64_t ids, std::int64_t dim, std::int64_t extra = 0) {
  RequestHeader header;
  header.kind = RequestKind::push_rows;
  header.flags = extra > 0 ? kHasShows : 0;
  header.table = 0;
  header.count = ids;
  header.payload_bytes = ids * (8 + 4 * dim + 4 * extra);
  return header;
}

TEST(PsCodec, PayloadsArriveAsTheyWere) {
  std::mt19937_64 random(7);
  for (const std::size_t count : {0U, 1U, 2U, 63U, 64U, 65U, 1000U}) {
    std::vector<std::int64_t> ids(count);
    std::vector<float> values(count * 3);
    std::vector<float> shows(count);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() >> random() % 64);
    for (auto& value : values) value = static_cast<float>(random() % 1000) / 7;
    for (auto& show : shows) show = static_cast<float>(random() % 9);
    const auto payload = payload_of(ids, values, shows);
    const auto shape = shape_of(push_of(std::ssize(ids), 3, 1), RowFormat{{3}, {}});
    EXPECT_EQ(travel(shape, payload, WireFormat::f32).payload, payload) << count;
  }
}

TEST(PsCodec, IdsThatAreNearTakeAByteAndThoseThatAreFarEight) {
  const auto bytes_of_ids = [](const std::vector<std::int64_t>& ids) {
    const PayloadShape shape{std::ssize(ids), 0, 0};
    const auto payload = payload_of(ids, {}, {});
    const Arrived arrived = travel(shape, payload, WireFormat::f32);
    EXPECT_EQ(arrived.payload, payload);
    return arrived.ids_bytes;
  };
  EXPECT_EQ(bytes_of_ids({0, 1, 2, 60, 3, 3}), 6);
  EXPECT_EQ(bytes_of_ids({64, 0, 8191}), 5);
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(bytes_of_ids({kMost, kLeast, kMost, kLeast}), 13);  // 1 and -1 apart, modulo 2^64
  EXPECT_EQ(bytes_of_ids({kMost / 2, kLeast / 2, kMost / 3}), 24);
  EXPECT_EQ(bytes_of_ids({}), 0);
}

TEST(PsCodec, RowsTravelInSixteenBits) {
  const std::vector<std::int64_t> ids{5, 9};
  const std::vector<float> values{1.0F, -0.1F, 70000.0F, 3.4e38F};
  const auto payload = payload_of(ids, values, {});
  const auto shape = shape_of(push_of(2, 2), RowFormat{{2}, {}});
  const auto rows = [&](WireFormat wire) {
    const Arrived arrived = travel(shape, payload, wire);
    EXPECT_EQ(arrived.all_bytes, 2 + 4 * 2);
    std::vector<float> got(4);
    std::memcpy(got.data(), arrived.payload.data() + 16, 16);
    return got;
  };
  const float tenth = to_float(to_half(-0.1F));
  EXPECT_EQ(rows(WireFormat::f16), (std::vector<float>{1.0F, tenth, 65504.0F, 65504.0F}));
  std::vector<float> expected;
  for (const float value : values) expected.push_back(to_float(to_bfloat16(value)));
  expected.back() = 0x1.fep127F;  // the greatest
  EXPECT_EQ(rows(WireFormat::bf16), expected);
}

TEST(PsCodec, WhatIsAddedTravelsWhole) {
  const std::vector<float> values{1e-9F, 1.0F + 0x1p-20F, 70000.0F, 3.4e38F};
  const auto payload = payload_of({5, 9}, values, {7, 8});
  RequestHeader header = push_of(2, 2, 1);
  header.kind = RequestKind::add_rows;
  const PayloadShape shape = shape_of(header, RowFormat{{2}, {}});
  EXPECT_EQ(travel(shape, payload, WireFormat::f16).payload, payload);
  RequestHeader dense;
  dense.kind = RequestKind::add_dense;
  dense.payload_bytes = 12;
  EXPECT_EQ(shape_of(dense, {}).values, 0);
}

TEST(PsCodec, InitialValuesAndPulledValuesOfDenseParametersTravelWhole) {
  RequestHeader header;
  header.kind = RequestKind::set_dense;
  header.payload_bytes = 12;
  EXPECT_EQ(shape_of(header, {}).values, 0);
  header.kind = RequestKind::push_dense;
  header.count = 2;
  EXPECT_EQ(shape_of(header, {}).values, 2);
  EXPECT_EQ(shape_of(header, {}).rest, 4);
  header.kind = RequestKind::pull_dense;
  EXPECT_EQ(shape_of(ReplyHeader{Outcome::done, -1, 40}, header, {}).values, 0);
}

TEST(PsCodec, RepliesHaveTheShapeOfWhatWasAsked) {
  RequestHeader asked;
  asked.table = 0;
  const RowFormat format{{4}, WireFormat::f16};
  asked.kind = RequestKind::look_up;
  EXPECT_EQ(shape_of(ReplyHeader{Outcome::done, -1, 64}, asked, format).values, 16);
  EXPECT_EQ(shape_of(ReplyHeader{Outcome::refused, -1, 64}, asked, format).rest, 64);
  asked.kind = RequestKind::pull_changed;
  const PayloadShape changed = shape_of(ReplyHeader{Outcome::done, -1, 72}, asked, format);
  EXPECT_EQ(changed.ids, 3);
  EXPECT_EQ(changed.values, 12);
}

TEST(PsCodec, NumbersThatDoNotFitAreRefused) {
  const RowFormat format{{4}, WireFormat::f32};
  const auto refusal = [&](const RequestHeader& header) {
    return text_of<CorruptMessage>([&] { shape_of(header, format); });
  };
  const std::string start = "a message between hosts makes no sense: ";
  RequestHeader header = push_of(3, 4);
  EXPECT_EQ(shape_of(header, format).values, 12);
  header.payload_bytes += 4;
  EXPECT_EQ(refusal(header), start + "a payload of 76 bytes where 72 belong");
  header.count = std::int64_t{1} << 60;
  EXPECT_NE(refusal(header).find(start + "ids of"), std::string::npos);
  header = push_of(3, 4);
  header.table = 1;
  EXPECT_EQ(refusal(header), start + "there is no table 1");
  header.table = -1;
  EXPECT_EQ(refusal(header), start + "there is no table -1");
  header = {.kind = RequestKind::push_dense, .count = 3, .payload_bytes = 8};
  EXPECT_EQ(refusal(header), start + "elements of 12 bytes");
  header.count = std::int64_t{1} << 62;
  EXPECT_NE(refusal(header).find(start + "elements of"), std::string::npos);
  header = push_of(3, 4);
  header.kind = static_cast<RequestKind>(200);
  EXPECT_EQ(refusal(header), start + "it is no request");
  header = push_of(3, 4);
  header.payload_bytes = -1;
  EXPECT_EQ(refusal(header), start + "it is no request");
}

TEST(PsCodec, IdsThatAreCutOffAreRefused) {
  const auto decoded = [](std::vector<int> bytes, std::int64_t ids) {
    return text_of<CorruptMessage>([&] {
      TravellingPayload received({ids, 0, 0}, std::ssize(bytes), WireFormat::f32);
      auto* out = static_cast<std::byte*>(received.pieces()[2].iov_base);
      for (const int byte : bytes) *out++ = static_cast<std::byte>(byte);
      received.decode();
    });
  };
  const std::string start = "a message between hosts makes no sense: ";
  EXPECT_EQ(decoded({0x80, 0x80}, 1), start + "its ids are cut off");
  EXPECT_EQ(decoded({1, 0x81}, 2), start + "its ids are cut off");
  EXPECT_EQ(decoded({1, 1, 1}, 2), start + "bytes follow its ids");
  EXPECT_EQ(decoded({1}, 2), start + "2 ids in 1 bytes");
  EXPECT_EQ(decoded(std::vector<int>(17, 1), 2), start + "2 ids in 17 bytes");
  EXPECT_EQ(decoded(std::vector<int>(15, 0x80), 2), start + "its ids are cut off");
}

}  // namespace
}  // namespace tutti::ps::test
