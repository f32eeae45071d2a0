// Requests, bytes, numbers and sums.
#include "simulation/contents.hpp"

#include <cstddef>
#include <span>
#include <stdexcept>

#include "device/cpu/reduction.hpp"
#include "support/data.hpp"
#include "tutti/call.hpp"

namespace tutti::test::simulated {

std::byte byte_of(std::size_t number, int from, int to, std::int64_t i) {
  return static_cast<std::byte>(scrambled(from * 97 + to + static_cast<int>(number) * 7, i, 256));
}

std::int64_t length_of(const Step& step, int from, int to) {
  return (from * 5 + to * 3) % 4 * step.count / 3;
}

bool goes_one_way(StepKind kind) {
  return kind == StepKind::one_way_broadcast || kind == StepKind::one_way_reduce;
}

Signature signature_of(const Step& step, std::int64_t count, int root) {
  Signature signature;
  signature.operation = Operation::all_reduce;
  signature.dtype = step.dtype;
  if (step.kind == StepKind::one_way_broadcast) {
    signature.operation = Operation::broadcast;
    signature.dtype = DType::u8;
  } else if (step.kind == StepKind::one_way_reduce) {
    signature.operation = Operation::reduce;
    signature.dtype = DType::i64;
  }
  signature.count = count;
  signature.root = root;
  return signature;
}

std::vector<std::int64_t> numbers_of(std::uint64_t call, int from, std::int64_t count) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.push_back(scrambled(from * 97 + static_cast<int>(call) * 7, i, 1000));
  }
  return numbers;
}

std::vector<std::int64_t> sums_of(std::uint64_t call, int ranks, std::int64_t count) {
  std::vector<std::int64_t> sums(static_cast<std::size_t>(count));
  for (int from = 0; from < ranks; ++from) {
    const std::vector<std::int64_t> numbers = numbers_of(call, from, count);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += numbers[i];
  }
  return sums;
}

HostGroup::Merge adding_to(std::vector<std::int64_t>& sums) {
  return [&sums](std::span<const void* const> parts) {
    void* target = sums.data();
    cpu::reduce(std::span(&target, 1), parts, std::ssize(sums), DType::i64,
                {ReduceKind::sum, 1.0, 1});
  };
}

bool agree_on_sums(const HostGroup& group, GroupAgreement& agreement, std::uint64_t hash,
                   std::uint64_t call, std::int64_t count) {
  constexpr std::int64_t kWidth = size_of(DType::i64);
  while (!agreement.carries(count * kWidth, count * kWidth)) count /= 2;
  const std::vector<std::int64_t> own = numbers_of(call, group.position(), count);
  std::vector<std::int64_t> data = own;
  const auto bytes = std::as_writable_bytes(std::span(data));
  const bool agreed = agreement.agree(hash, {bytes, std::ssize(bytes)}, bytes, adding_to(data));
  if (data == (agreed ? sums_of(call, group.size(), count) : own)) return agreed;
  throw std::logic_error("wrong sums of what members bring to agree");
}

}  // namespace tutti::test::simulated
