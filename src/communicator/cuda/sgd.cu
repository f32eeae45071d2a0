// SGD on a list of tensors: each element of memory is touched once.
#include "communicator/cuda/kernels.hpp"
#include "communicator/cuda/launch.cuh"
#include "communicator/elementwise.hpp"

namespace tutti::cuda {
namespace {

constexpr int kMostPieces = 96;  // 32 + 4 bytes each
using List = PieceList<SgdPiece, kMostPieces>;

__device__ float& element(float4& group, int i) { return (&group.x)[i]; }

template <bool kVelocity>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(const __grid_constant__ List list, const cpu::SgdStep step) {
  const Chunk<SgdPiece> chunk = chunk_of_block(list);
  float* parameter = chunk.piece->parameter + chunk.begin;
  const float* gradient = chunk.piece->gradient + chunk.begin;
  float* velocity = kVelocity ? chunk.piece->velocity + chunk.begin : nullptr;
  const int count = static_cast<int>(chunk.end - chunk.begin);
  const bool grouped =
      takes_groups(parameter) && takes_groups(gradient) && (!kVelocity || takes_groups(velocity));
  const int groups = grouped ? count / kGroup : 0;
  for (int i = threadIdx.x; i < groups; i += kThreads) {
    float4 p = reinterpret_cast<const float4*>(parameter)[i];
    float4 g = reinterpret_cast<const float4*>(gradient)[i];
    float4 v{};
    if (kVelocity && !step.first) v = reinterpret_cast<const float4*>(velocity)[i];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const SgdElement next =
          sgd_step({element(p, j), element(v, j)}, element(g, j), kVelocity, step);
      element(p, j) = next.parameter;
      element(v, j) = next.velocity;
    }
    reinterpret_cast<float4*>(parameter)[i] = p;
    if (kVelocity) reinterpret_cast<float4*>(velocity)[i] = v;
  }
  for (int i = groups * kGroup + threadIdx.x; i < count; i += kThreads) {
    const float v = kVelocity && !step.first ? velocity[i] : 0.0F;
    const SgdElement next = sgd_step({parameter[i], v}, gradient[i], kVelocity, step);
    parameter[i] = next.parameter;
    if (kVelocity) velocity[i] = next.velocity;
  }
}

}  // namespace

void sgd_update(std::span<const SgdPiece> pieces, const cpu::SgdStep& step, const Stream& stream) {
  const bool has_velocity = !pieces.empty() && pieces.front().velocity != nullptr;
  for_each_list<kMostPieces>(pieces, [&](const List& list, unsigned blocks) {
    if (has_velocity) {
      sgd_kernel<true><<<blocks, kThreads, 0, native(stream)>>>(list, step);
    } else {
      sgd_kernel<false><<<blocks, kThreads, 0, native(stream)>>>(list, step);
    }
    check_launch("sgd_kernel");
  });
}

}  // namespace tutti::cuda
