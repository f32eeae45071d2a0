// Packets of sparse vectors, the sketches of their indices, and what is decided by them.
#include "comm/sparse/packet.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/sparse/plan.hpp"
#include "comm/sparse/sum.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using Elements = std::vector<std::pair<std::uint32_t, float>>;

/** `count` elements whose distances take up to `width` bits, the last one being the last there is
 * if they reach that far. */
Elements elements(std::size_t count, unsigned width, std::int64_t begin) {
  std::mt19937 random(width + 1);
  Elements result;
  std::int64_t next = begin;
  for (std::size_t i = 0; i < count; ++i) {
    next += static_cast<std::int64_t>(random() & ((std::uint64_t{1} << width) - 1));
    next = std::min<std::int64_t>(next, kMostSparse - 1);
    if (!result.empty() && result.back().first == next) break;
    result.emplace_back(static_cast<std::uint32_t>(next), static_cast<float>(random() % 1000U));
    ++next;
  }
  return result;
}

/** Writes packets and reads them again. */
class Packed {
 public:
  void add(std::int64_t begin, const Elements& what) {
    writer_.begin_packet(begin);
    for (const auto& [index, value] : what) writer_.add(index, value);
    sizes_.push_back(writer_.end_packet());
    begins_.push_back(begin);
  }
  PacketSize size(std::size_t i) const { return sizes_[i]; }

  Elements read(std::int64_t step) {
    memory_.assign(writer_.bytes().begin(), writer_.bytes().end());
    memory_.resize(memory_.size() + kPacketSlack);
    std::vector<SparsePacket> packets;
    const std::byte* data = memory_.data();
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const bool last = i + 1 == sizes_.size();
      packets.push_back({data, sizes_[i], begins_[i], last ? kMostSparse : begins_[i + 1]});
      data += sizes_[i].bytes;
    }
    EXPECT_EQ(data, memory_.data() + memory_.size() - kPacketSlack);
    Elements result;
    PacketCursor cursor{std::span(packets)};
    while (cursor.next() != PacketCursor::kEnd) {
      const std::int64_t end = std::min(cursor.next() + step, PacketCursor::kEnd);
      cursor.take_below(end, [&](std::uint32_t index, float value) {
        EXPECT_LT(index, end);
        result.emplace_back(index, value);
      });
      EXPECT_GE(cursor.next(), end);
    }
    return result;
  }

 private:
  PacketWriter writer_;
  std::vector<PacketSize> sizes_;
  std::vector<std::int64_t> begins_;
  std::vector<std::byte> memory_;
};

constexpr std::size_t kLengths[] = {0, 1, 2, 63, 64, 65, 1000};

TEST(SparsePacket, HoldsDistancesOfEveryWidth) {
  for (unsigned width = 0; width <= 32; ++width) {
    for (const std::size_t count : kLengths) {
      SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(width) + " bits");
      const Elements all = elements(count, width, 17);
      Packed packed;
      packed.add(17, all);
      EXPECT_EQ(packed.size(0).count, std::ssize(all));
      for (const std::int64_t step : {std::int64_t{1}, std::int64_t{100}, kMostSparse}) {
        ASSERT_EQ(packed.read(step), all);
      }
    }
  }
}

TEST(SparsePacket, OfSeveralRangesAreReadAsOne) {
  Packed packed;
  Elements all;
  for (const auto& [begin, count] : std::vector<std::pair<std::int64_t, std::size_t>>{
           {0, 0}, {0, 70}, {100'000, 0}, {200'000, 1}, {300'000, 128}, {kMostSparse - 1, 1}}) {
    const Elements part = elements(count, begin == kMostSparse - 1 ? 0 : 9, begin);
    packed.add(begin, part);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(packed.read(1000), all);
}

TEST(SparsePacket, TakesFewBytes) {
  std::mt19937 random(1);
  Elements percent;
  Elements full;
  for (std::uint32_t i = 0; i < 1'000'000; ++i) {
    if (random() % 100 == 0) percent.emplace_back(i, 1.0F);
    if (i < 64'000) full.emplace_back(i, 1.0F);
  }
  Packed packed;
  packed.add(0, percent);
  packed.add(0, full);
  const auto bytes_each = [&](std::size_t i) {
    return static_cast<double>(packed.size(i).bytes) / static_cast<double>(packed.size(i).count);
  };
  EXPECT_LT(bytes_each(0), 5.25);
  EXPECT_LT(bytes_each(1), 4.02);
}

/** A packet of 100 elements in [10, 1000), before something happens to it. */
struct Fragile {
  std::vector<std::byte> memory;
  SparsePacket packet;

  Fragile() {
    PacketWriter writer;
    writer.clear();
    writer.begin_packet(10);
    for (std::uint32_t i = 0; i < 100; ++i) writer.add(10 + 9 * i + i % 4, 1.0F);
    packet = {nullptr, writer.end_packet(), 10, 1000, 3};
    memory.assign(writer.bytes().begin(), writer.bytes().end());
    memory.resize(memory.size() + kPacketSlack);
  }
  /** The number of its elements, which are where they may be. */
  std::int64_t read() {
    packet.data = memory.data();
    PacketCursor cursor(std::span(&packet, 1));
    std::int64_t next = packet.begin;
    std::int64_t count = 0;
    cursor.take_below(PacketCursor::kEnd, [&](std::uint32_t index, float) {
      EXPECT_GE(index, next);
      EXPECT_LT(index, packet.end);
      next = std::int64_t{index} + 1;
      ++count;
    });
    return count;
  }
};

TEST(SparsePacket, RefusesWhatIsCorrupt) {
  EXPECT_EQ(Fragile().read(), 100);
  const auto refused = [](const std::string& message, const auto& damage) {
    Fragile fragile;
    damage(fragile);
    try {
      fragile.read();
      ADD_FAILURE() << "no " << message;
    } catch (const CommunicationError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find("the packet of indices 10 to "), 0U) << text;
      EXPECT_NE(text.find(" from rank 3 is corrupt: "), std::string::npos) << text;
      EXPECT_NE(text.find(message), std::string::npos) << text;
    }
  };
  refused("distances of 33 bits", [](Fragile& f) { f.memory[0] = std::byte{33}; });
  refused("distances of 255 bits", [](Fragile& f) { f.memory[0] = std::byte{255}; });
  refused("takes 513 bytes", [](Fragile& f) { f.memory[0] = std::byte{32}; });
  refused("element 64 of 100", [](Fragile& f) { f.memory[0] = std::byte{0}; });
  refused("it has -1 elements", [](Fragile& f) { f.packet.size.count = -1; });
  refused("it has 991 elements", [](Fragile& f) { f.packet.size.count = 991; });
  refused("it has -8 bytes", [](Fragile& f) { f.packet.size.bytes = -8; });
  refused("it has 0 bytes", [](Fragile& f) { f.packet.size.bytes = 0; });
  refused("it has 4611686018427387904 bytes",
          [](Fragile& f) { f.packet.size.bytes = std::int64_t{1} << 62; });
  refused("are left", [](Fragile& f) { --f.packet.size.bytes; });
  refused("are left", [](Fragile& f) { ++f.packet.size.bytes; });
  refused("are left", [](Fragile& f) { --f.packet.size.count; });
  refused("are left", [](Fragile& f) { ++f.packet.size.count; });
  refused("reaches ", [](Fragile& f) { f.packet.end = 900; });
  refused("reaches 1033", [](Fragile& f) { std::fill_n(&f.memory[1], 32, std::byte{255}); });
}

SparseSketch::Summary sketch(std::uint32_t begin, std::uint32_t end, std::uint32_t step) {
  SparseSketch result;
  result.clear();
  for (std::uint32_t i = begin; i < end; i += step) result.add(i);
  return result.summary();
}

TEST(SparseSketch, EstimatesAUnion) {
  const std::vector<SparseSketch::Summary> few{sketch(0, 50, 1), sketch(20, 90, 1)};
  EXPECT_EQ(estimate_union(few), 90.0);
  EXPECT_EQ(estimate_union({}), 0.0);
  const std::vector<SparseSketch::Summary> same(4, sketch(0, 1'000'000, 10));
  EXPECT_NEAR(estimate_union(same), 1e5, 3e4);
  const std::vector<SparseSketch::Summary> apart{sketch(0, 1'000'000, 10), sketch(1, 1'000'000, 10),
                                                 sketch(2, 1'000'000, 10)};
  EXPECT_NEAR(estimate_union(apart), 3e5, 9e4);
  const std::vector<SparseSketch::Summary> uneven{sketch(0, 1'000'000, 10), sketch(5, 15, 10)};
  EXPECT_NEAR(estimate_union(uneven), 1e5, 3e4);
}

SparseTask task(double overlap, double density, double seconds_per_byte) {
  SparseTask result;
  result.count = 16 << 20;
  result.hosts = 4;
  result.ranks = 1;
  result.most_entries = static_cast<std::int64_t>(density * static_cast<double>(result.count));
  result.most_bytes = result.most_entries * 5;
  result.all_entries = 4 * result.most_entries;
  const auto entries = static_cast<double>(result.most_entries);
  result.union_entries = std::min(entries * (overlap + 4.0 * (1.0 - overlap)), 16.0 * 0x1p20);
  result.seconds_per_byte = seconds_per_byte;
  return result;
}

TEST(SparsePlan, FollowsOverlapAndDensity) {
  constexpr double kGigabit = 8e-9;
  EXPECT_EQ(plan_sparse(task(0.0, 0.01, kGigabit)).algorithm, SparseAlgorithm::gather);
  EXPECT_EQ(plan_sparse(task(0.8, 0.01, kGigabit)).algorithm, SparseAlgorithm::split);
  EXPECT_EQ(plan_sparse(task(1.0, 1.0, kGigabit)).algorithm, SparseAlgorithm::dense);
  // On a fast wire it is the work that counts.
  EXPECT_EQ(plan_sparse(task(0.0, 0.5, 1e-11)).algorithm, SparseAlgorithm::dense);
  // A few elements are not worth more messages.
  EXPECT_EQ(plan_sparse(task(0.8, 1e-6, kGigabit)).algorithm, SparseAlgorithm::gather);
  EXPECT_NE(plan_sparse(task(0.8, 0.01, kGigabit)).describe().find("split (predicted: gather"),
            std::string::npos);
}

TEST(SparsePlan, KnowsWhatTheRanksOfAHostStillHaveToGet) {
  // Between dense and sparse it is close here. One rank a host has the elements once they have
  // arrived; of several, the others have to get them, and elements are longer than packets.
  SparseTask close = task(0.0, 0.055, 1e-11);
  EXPECT_EQ(plan_sparse(close).algorithm, SparseAlgorithm::dense);
  const SparsePlan alone = plan_sparse(close);
  close.ranks = 2;
  EXPECT_EQ(plan_sparse(close).algorithm, SparseAlgorithm::gather);
  const auto more = [&](SparseAlgorithm algorithm) {
    const auto at = static_cast<std::size_t>(algorithm);
    return plan_sparse(close).seconds[at] - alone.seconds[at];
  };
  // All elements take longest; packets take as long as they are, their sum less if it is shorter.
  EXPECT_GT(more(SparseAlgorithm::dense), 2.0 * more(SparseAlgorithm::gather));
  EXPECT_NEAR(more(SparseAlgorithm::gather), more(SparseAlgorithm::split), 1e-9);
  SparseTask common = task(0.8, 0.055, 1e-11);
  const SparsePlan one = plan_sparse(common);
  common.ranks = 8;
  const SparsePlan eight = plan_sparse(common);
  EXPECT_GT(eight.seconds[1] - one.seconds[1], 2.0 * (eight.seconds[2] - one.seconds[2]));
}

TEST(SparsePlan, IsForcedByTheEnvironment) {
  ::setenv("TUTTI_SPARSE", "split", 1);
  EXPECT_EQ(forced_sparse_algorithm(), SparseAlgorithm::split);
  ::setenv("TUTTI_SPARSE", "auto", 1);
  EXPECT_FALSE(forced_sparse_algorithm());
  ::setenv("TUTTI_SPARSE", "none", 1);
  EXPECT_THROW(forced_sparse_algorithm(), InvalidArgument);
  ::unsetenv("TUTTI_SPARSE");
  EXPECT_FALSE(forced_sparse_algorithm());
}

TEST(SparseSum, OfBlocksLeavesNothingBehind) {
  const std::vector<std::uint32_t> first{0, 4095, 4096, 100'000};
  const std::vector<std::uint32_t> second{1, 4096, 99'999};
  const std::vector<float> ones(4, 1.0F);
  const auto block = std::make_unique<SumBlock>();
  for (int run = 0; run < 2; ++run) {
    std::vector<ViewCursor> sources{ViewCursor({first.data(), ones.data(), 4}),
                                    ViewCursor({second.data(), ones.data(), 3})};
    Elements sums;
    const auto put = [&](std::uint32_t index, float sum) { sums.emplace_back(index, sum); };
    sum_sparse(std::span(sources), 4096, *block, put);
    sum_sparse(std::span(sources), kMostSparse, *block, put);
    EXPECT_EQ(
        sums,
        (Elements{
            {0, 1.0F}, {1, 1.0F}, {4095, 1.0F}, {4096, 2.0F}, {99'999, 1.0F}, {100'000, 1.0F}}));
  }
}

}  // namespace
}  // namespace tutti
