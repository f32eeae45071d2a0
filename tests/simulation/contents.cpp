// Requests, bytes and numbers.
#include "simulation/contents.hpp"

#include <cstddef>

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

}  // namespace tutti::test::simulated
