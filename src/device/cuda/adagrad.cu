// Adagrad on a list of tensors: each element of memory is touched once.
#include "device/cuda/kernels.hpp"
#include "device/cuda/launch.cuh"
#include "device/elementwise.hpp"

namespace tutti::cuda {
namespace {

constexpr int kMostPieces = 96;  // 32 + 4 bytes each
using List = PieceList<AdagradPiece, kMostPieces>;

__global__ void __launch_bounds__(kThreads)
    adagrad_kernel(const __grid_constant__ List list, const AdagradStep step) {
  const Chunk<AdagradPiece> chunk = chunk_of_block(list);
  float* parameter = chunk.piece->parameter + chunk.begin;
  const float* gradient = chunk.piece->gradient + chunk.begin;
  float* sum = chunk.piece->sum + chunk.begin;
  const int count = static_cast<int>(chunk.end - chunk.begin);
  const bool grouped = takes_groups(parameter) && takes_groups(gradient) && takes_groups(sum);
  for_each_group_of_block<kGroup>(count, grouped, [&]<int kN>(int at) {
    Group<float, kN> p = load<kN>(parameter + at);
    const Group<float, kN> g = load<kN>(gradient + at);
    Group<float, kN> v = load<kN>(sum + at);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float d =
          decayed_gradient(g.elements[j], p.elements[j], step.gradient_scale, step.weight_decay);
      v.elements[j] = v.elements[j] + d * d;
      p.elements[j] = adagrad_parameter(p.elements[j], d, sqrtf(v.elements[j]), step);
    }
    store(parameter + at, p);
    store(sum + at, v);
  });
}

}  // namespace

void adagrad_update(std::span<const AdagradPiece> pieces, const AdagradStep& step,
                    const Stream& stream) {
  for_each_list<kMostPieces>(pieces, [&](const List& list, unsigned blocks) {
    launch("adagrad_kernel", adagrad_kernel, blocks, kThreads, stream, list, step);
  });
}

void load_adagrad() { load_all(adagrad_kernel); }

}  // namespace tutti::cuda
