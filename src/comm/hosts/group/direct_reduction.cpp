// Sums of short messages, and what adds up those of all.
#include "comm/hosts/group/direct_reduction.hpp"

#include "base/recycled.hpp"

namespace tutti {

void DirectReduction::combine(std::byte* to, const std::byte* own, const std::byte* others,
                              std::int64_t stride, std::int64_t bytes) const {
  RecycledVector<const void*> inputs;
  for (int member = 0; member < group_.size(); ++member) {
    inputs.push_back(member == group_.position() ? own : others + member * stride);
  }
  void* output = to;
  cpu::reduce({&output, 1}, inputs, bytes / size_of(dtype_), dtype_, combine_);
}

void DirectReduction::reduce_whole(std::byte* data, std::int64_t bytes) const {
  const Scratch memory(group_.wire().scratch(), group_.size() * bytes);
  std::byte* const received = memory.data();
  GroupBatch batch(group_, Wire::Traffic::collective);
  const auto length = static_cast<std::size_t>(bytes);
  group_.in_turns([&](int source, int target) {
    batch.recv({received + source * bytes, length}, source);
    batch.send({data, length}, target);
  });
  batch.wait();
  combine(data, data, received, bytes, bytes);
}

}  // namespace tutti
