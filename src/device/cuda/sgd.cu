// SGD on a list of tensors: each element of memory is touched once.
#include "device/cuda/kernels.hpp"
#include "device/cuda/launch.cuh"
#include "device/elementwise.hpp"

namespace tutti::cuda {
namespace {

constexpr int kMostPieces = 96;  // 32 + 4 bytes each
using List = PieceList<SgdPiece, kMostPieces>;

template <bool kVelocity>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(const __grid_constant__ List list, const SgdStep step) {
  const Chunk<SgdPiece> chunk = chunk_of_block(list);
  float* parameter = chunk.piece->parameter + chunk.begin;
  const float* gradient = chunk.piece->gradient + chunk.begin;
  float* velocity = kVelocity ? chunk.piece->velocity + chunk.begin : nullptr;
  const int count = static_cast<int>(chunk.end - chunk.begin);
  const bool grouped =
      takes_groups(parameter) && takes_groups(gradient) && (!kVelocity || takes_groups(velocity));
  for_each_group_of_block<kGroup>(count, grouped, [&]<int kN>(int at) {
    Group<float, kN> p = load<kN>(parameter + at);
    const Group<float, kN> g = load<kN>(gradient + at);
    Group<float, kN> v{};
    if (kVelocity && !step.first) v = load<kN>(velocity + at);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const SgdElement next =
          sgd_step({p.elements[j], v.elements[j]}, g.elements[j], kVelocity, step);
      p.elements[j] = next.parameter;
      v.elements[j] = next.velocity;
    }
    store(parameter + at, p);
    if (kVelocity) store(velocity + at, v);
  });
}

}  // namespace

void sgd_update(std::span<const SgdPiece> pieces, const SgdStep& step, const Stream& stream) {
  const bool has_velocity = !pieces.empty() && pieces.front().velocity != nullptr;
  for_each_list<kMostPieces>(pieces, [&](const List& list, unsigned blocks) {
    if (has_velocity) {
      launch("sgd_kernel", sgd_kernel<true>, blocks, kThreads, stream, list, step);
    } else {
      launch("sgd_kernel", sgd_kernel<false>, blocks, kThreads, stream, list, step);
    }
  });
}

void load_sgd() { load_all(sgd_kernel<true>, sgd_kernel<false>); }

}  // namespace tutti::cuda
