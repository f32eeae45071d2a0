// Calls as values: what each operation's is, and that signatures and texts come from it.
#include "tutti/call.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "comm/signature.hpp"

namespace tutti {
namespace {

std::array<float, 12> twelve_floats{};
View elements(std::int64_t count) { return {twelve_floats.data(), count, DType::f32}; }

constexpr std::array<std::int64_t, 3> kCounts{1, 2, 3};

TEST(Call, ShowsWhatTheOperationCounts) {
  EXPECT_EQ(Call::all_reduce(elements(6), elements(6), Reduce::max).describe(),
            "all_reduce(f32, count 6, max)");
  EXPECT_EQ(Call::reduce(elements(6), {}, Reduce::premul_sum(0.5), 2).describe(),
            "reduce(f32, count 6, premul_sum with factor 0.5, root 2)");
  EXPECT_EQ(Call::broadcast({}, elements(6), 1).describe(), "broadcast(f32, count 6, root 1)");
  EXPECT_EQ(Call::all_gather(elements(3), elements(6)).describe(), "all_gather(f32, count 3)");
  EXPECT_EQ(Call::reduce_scatter(elements(6), elements(3), Reduce::sum).describe(),
            "reduce_scatter(f32, count 3, sum)");
  EXPECT_EQ(Call::all_to_all(elements(6), elements(6), 2).describe(), "all_to_all(f32, count 3)");
  EXPECT_EQ(Call::sparse_all_reduce({}, elements(6), Reduce::average).describe(),
            "sparse_all_reduce(f32, count 6, average)");
  EXPECT_EQ(Call::send(elements(4), 3).describe(), "send(f32, count 4)");
  EXPECT_EQ(Call::recv(elements(4), 3).describe(), "recv(f32, count 4)");
  const std::array<Message, 2> messages{Message::send(elements(4), 3, 1),
                                        Message::recv(elements(6), kAnySource)};
  EXPECT_EQ(Call::exchange(messages).describe(), "exchange(40 bytes)");
  EXPECT_EQ(Call::allocate(4096).describe(), "allocate(4096 bytes)");
  EXPECT_EQ(Call::barrier().describe(), "barrier()");
  EXPECT_EQ(Call::split().describe(), "split()");
  EXPECT_EQ(Call::group().describe(), "group()");
  const std::string gathered = Call::all_gather_v(elements(2), elements(6), kCounts).describe();
  EXPECT_EQ(gathered.find("all_gather_v(f32, count 6 in all, 2 of this rank, counts #"), 0U)
      << gathered;
}

TEST(Call, HasTheDeviceOfItsMemory) {
  const Device gpu{DeviceKind::cuda, 1};
  View there = elements(4);
  there.device = gpu;
  EXPECT_EQ(Call::all_reduce(there, there, Reduce::sum).device, gpu);
  EXPECT_EQ(Call::broadcast({}, there, 0).device, gpu) << "only the root has an input";
  EXPECT_EQ(Call::reduce(there, {}, Reduce::sum, 0).device, gpu) << "only the root has an output";
  EXPECT_EQ(Call::recv(there, 0).device, gpu);
  EXPECT_EQ(Call::barrier(gpu).device, gpu);
  EXPECT_EQ(Call::allocate(1, gpu).device, gpu);
}

TEST(Call, SignaturesDifferWhereCallsDo) {
  const std::array<Call, 9> calls{
      Call::all_reduce(elements(6), elements(6), Reduce::sum),
      Call::all_reduce(elements(6), elements(6), Reduce::premul_sum(2)),
      Call::all_reduce(elements(6), elements(6), Reduce::premul_sum(3)),
      Call::all_reduce(elements(5), elements(5), Reduce::sum),
      Call::reduce(elements(6), elements(6), Reduce::sum, 0),
      Call::reduce(elements(6), elements(6), Reduce::sum, 1),
      Call::all_gather_v(elements(1), elements(6), kCounts),
      Call::all_gather_v(elements(1), elements(6), std::span(kCounts).first(2)),
      Call::barrier()};
  std::set<std::uint64_t> hashes;
  for (const Call& call : calls) {
    EXPECT_TRUE(hashes.insert(Signature::of(call).hash()).second) << call.describe();
  }
  // What a rank brings may differ, and where its memory is.
  EXPECT_EQ(
      Signature::of(Call::all_gather_v(elements(3), {nullptr, 6, DType::f32}, kCounts)).hash(),
      Signature::of(calls[6]).hash());
}

}  // namespace
}  // namespace tutti
