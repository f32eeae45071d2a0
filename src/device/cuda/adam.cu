// Adam on a list of tensors: each element of memory is touched once.
#include "device/cuda/kernels.hpp"
#include "device/cuda/launch.cuh"
#include "device/elementwise.hpp"

namespace tutti::cuda {
namespace {

constexpr int kMostPieces = 80;  // 40 + 4 bytes each
using List = PieceList<AdamPiece, kMostPieces>;

__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ List list, const AdamStep step) {
  const Chunk<AdamPiece> chunk = chunk_of_block(list);
  float* parameter = chunk.piece->parameter + chunk.begin;
  const float* gradient = chunk.piece->gradient + chunk.begin;
  float* first = chunk.piece->first + chunk.begin;
  float* second = chunk.piece->second + chunk.begin;
  const int count = static_cast<int>(chunk.end - chunk.begin);
  const bool grouped = takes_groups(parameter) && takes_groups(gradient) && takes_groups(first) &&
                       takes_groups(second);
  for_each_group_of_block<kGroup>(count, grouped, [&]<int kN>(int at) {
    Group<float, kN> p = load<kN>(parameter + at);
    const Group<float, kN> g = load<kN>(gradient + at);
    Group<float, kN> m = load<kN>(first + at);
    Group<float, kN> v = load<kN>(second + at);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const AdamElement<float> next =
          adam_moments({p.elements[j], m.elements[j], v.elements[j]}, g.elements[j], step);
      m.elements[j] = next.first;
      v.elements[j] = next.second;
      p.elements[j] = adam_parameter(next, sqrtf(next.second), step);
    }
    store(parameter + at, p);
    store(first + at, m);
    store(second + at, v);
  });
}

}  // namespace

void adam_update(std::span<const AdamPiece> pieces, const AdamStep& step, const Stream& stream) {
  for_each_list<kMostPieces>(pieces, [&](const List& list, unsigned blocks) {
    launch("adam_kernel", adam_kernel, blocks, kThreads, stream, list, step);
  });
}

void load_adam() { load_all(adam_kernel); }

}  // namespace tutti::cuda
