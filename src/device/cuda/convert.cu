// Gradients to packets and back: clip, scale and cast in one pass over a list of tensors.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/cuda/kernels.hpp"
#include "device/cuda/launch.cuh"
#include "device/elementwise.hpp"
#include "tutti/error.hpp"

namespace tutti::cuda {
namespace {

constexpr int kMostPieces = 128;  // 24 + 4 bytes each
using List = PieceList<Piece, kMostPieces>;

/** Calls convert(From) -> To for the elements of a block's chunk. */
template <class From, class To, class Convert>
__device__ void convert_chunk(const List& list, const Convert& convert) {
  // One access writes: neighbouring threads then write without gaps, which on an H200 takes 0.72 of
  // the time of two accesses each.
  constexpr int kCount = kAccess / static_cast<int>(sizeof(To));
  const Chunk<Piece> chunk = chunk_of_block(list);
  const From* from = static_cast<const From*>(chunk.piece->from) + chunk.begin;
  To* to = static_cast<To*>(chunk.piece->to) + chunk.begin;
  const int count = static_cast<int>(chunk.end - chunk.begin);
  const bool grouped = takes_groups(from) && takes_groups(to);
  for_each_group_of_block<kCount>(count, grouped, [&]<int kN>(int at) {
    const Group<From, kN> in = load<kN>(from + at);
    Group<To, kN> out;
#pragma unroll
    for (int j = 0; j < kN; ++j) out.elements[j] = convert(in.elements[j]);
    store(to + at, out);
  });
}

/** Rounds to nearest, ties to even, as conversions of CUDA's 16-bit types do. */
template <class Wire>
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(const __grid_constant__ List list, Narrowing how) {
  convert_chunk<float, Wire>(
      list, [how](float value) { return static_cast<Wire>(clip_and_scale(value, how)); });
}

template <class Wire>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const __grid_constant__ List list, float factor, unsigned long long* non_finite) {
  unsigned found = 0;
  convert_chunk<Wire, float>(list, [&](Wire value) {
    const float result = factor * static_cast<float>(value);
    if (!is_finite(result)) ++found;
    return result;
  });
  if (non_finite != nullptr && found != 0) atomicAdd(non_finite, found);  // rare: no reduction
}

template <class Wire>
void narrow_as(std::span<const Piece> pieces, const Narrowing& narrowing, const Stream& stream) {
  for_each_list<kMostPieces>(pieces, [&](const List& list, unsigned blocks) {
    launch("narrow_kernel", narrow_kernel<Wire>, blocks, kThreads, stream, list, narrowing);
  });
}

template <class Wire>
void widen_as(std::span<const Piece> pieces, float factor, std::int64_t* non_finite,
              const Stream& stream) {
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  auto* counter = reinterpret_cast<unsigned long long*>(non_finite);
  for_each_list<kMostPieces>(pieces, [&](const List& list, unsigned blocks) {
    launch("widen_kernel", widen_kernel<Wire>, blocks, kThreads, stream, list, factor, counter);
  });
}

/** Calls action.operator()<Wire>(). */
template <class Action>
void with_type_of(DType wire, const Action& action) {
  switch (wire) {
    case DType::f32:
      return action.template operator()<float>();
    case DType::f16:
      return action.template operator()<__half>();
    case DType::bf16:
      return action.template operator()<__nv_bfloat16>();
    default:
      throw InvalidArgument("wire is " + std::string(name_of(wire)) +
                            ", but must be f32, f16 or bf16");
  }
}

}  // namespace

void narrow(std::span<const Piece> pieces, DType wire, const Narrowing& narrowing,
            const Stream& stream) {
  with_type_of(wire, [&]<class Wire>() { narrow_as<Wire>(pieces, narrowing, stream); });
}

void widen(std::span<const Piece> pieces, DType wire, float factor, std::int64_t* non_finite,
           const Stream& stream) {
  with_type_of(wire, [&]<class Wire>() { widen_as<Wire>(pieces, factor, non_finite, stream); });
}

void load_convert() {
  load_all(narrow_kernel<float>, narrow_kernel<__half>, narrow_kernel<__nv_bfloat16>,
           widen_kernel<float>, widen_kernel<__half>, widen_kernel<__nv_bfloat16>);
}

}  // namespace tutti::cuda
