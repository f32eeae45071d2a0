// How kernels are launched, and how a list of tensors is spread over blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "device/cuda/check.hpp"
#include "tutti/device.hpp"

namespace tutti::cuda {

inline constexpr int kThreads = 256;                  ///< of a block
inline constexpr int kPerThread = 16;                 ///< elements, in groups
inline constexpr int kChunk = kThreads * kPerThread;  ///< elements of a block
inline constexpr int kAccess = 16;                    ///< bytes, the most that one access moves
inline constexpr int kGroup = kAccess / 4;            ///< elements of four bytes in an access

/**
 * Launches a kernel, which errors call `name`. The only way to do that, and an ordinary call of the
 * runtime: the kernels can be compiled for a CPU as they are (tests/gpu/on_cpu).
 */
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
            const Stream& stream, const std::type_identity_t<Parameters>&... arguments) {
  void* pointers[]{const_cast<Parameters*>(&arguments)...};  // they are only read
  check(cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), pointers, 0,
                         static_cast<cudaStream_t>(stream.native())),
        name);
}

/** Loads kernels onto the current device, all of a file. */
template <class... Kernels>
void load_all(Kernels*... kernels) {
  for (const void* kernel : {reinterpret_cast<const void*>(kernels)...}) {
    cudaFuncAttributes attributes{};  // which only a kernel that is loaded has
    check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  }
}

inline std::int64_t blocks_for(std::int64_t elements, std::int64_t per_block) {
  return (elements + per_block - 1) / per_block;
}

/**
 * Tensors that one launch works on, passed by value: a kernel's arguments may have 4 KiB. As a
 * __grid_constant__ they are read where they are. Block b works on a chunk of the piece i for which
 * first_block[i] <= b < first_block[i + 1].
 */
template <class Piece, int kMost>
struct PieceList {
  Piece pieces[kMost];
  unsigned first_block[kMost + 1];
  int count;
};

/** A block's part of a list. */
template <class Piece>
struct Chunk {
  const Piece* piece;
  std::int64_t begin;
  std::int64_t end;
};

template <class Piece, int kMost>
__device__ Chunk<Piece> chunk_of_block(const PieceList<Piece, kMost>& list) {
  int low = 0;
  int high = list.count;  // low's piece starts at or before this block, high's after it
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (list.first_block[middle] <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Piece& piece = list.pieces[low];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - list.first_block[low]) * kChunk;
  const std::int64_t end = begin + kChunk < piece.count ? begin + kChunk : piece.count;
  return {&piece, begin, end};
}

/** Cuts `pieces` into lists and calls action(list, blocks) for each. */
template <int kMost, class Piece, class Action>
void for_each_list(std::span<const Piece> pieces, const Action& action) {
  constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;  // of a grid
  PieceList<Piece, kMost> list{};
  std::int64_t blocks = 0;
  const auto flush = [&] {
    if (list.count == 0) return;
    list.first_block[list.count] = static_cast<unsigned>(blocks);
    action(list, static_cast<unsigned>(blocks));
    list.count = 0;
    blocks = 0;
  };
  for (const Piece& piece : pieces) {
    if (piece.count == 0) continue;
    const std::int64_t needed = blocks_for(piece.count, kChunk);
    if (list.count == kMost || blocks + needed > kMostBlocks) flush();
    list.pieces[list.count] = piece;
    list.first_block[list.count] = static_cast<unsigned>(blocks);
    ++list.count;
    blocks += needed;
  }
  flush();
}

/** What a thread reads or writes together: in accesses of kAccess bytes, or in one of less. */
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < kAccess ? kCount * sizeof(T) : kAccess) Group {
  static_assert(kAccess % (kCount * sizeof(T)) == 0 || kCount * sizeof(T) % kAccess == 0);
  T elements[kCount];
};

/** Whether groups of more than one element may begin at `data`. */
__device__ inline bool takes_groups(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kAccess == 0;
}

template <int kCount, class T>
__device__ Group<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Group<T, kCount>*>(from);
}

/** The same from any address, element by element unless `aligned`. */
template <int kCount, class T>
__device__ Group<T, kCount> load_any(const T* from, bool aligned) {
  if (aligned) return load<kCount>(from);
  Group<T, kCount> group;
#pragma unroll
  for (int j = 0; j < kCount; ++j) group.elements[j] = from[j];
  return group;
}

template <class T, int kCount>
__device__ void store(T* to, const Group<T, kCount>& group) {
  *reinterpret_cast<Group<T, kCount>*>(to) = group;
}

/**
 * Calls action.operator()<n>(at) for groups of n elements from number `at` on, which together are
 * the elements [0, count): n is kCount as far as possible if `grouped`, and 1 for the others. This
 * is thread number `thread` of `threads` that share the work.
 */
template <int kCount, class Index, class Action>
__device__ void for_each_group(Index count, bool grouped, Index thread, Index threads,
                               const Action& action) {
  const Index groups = grouped ? count / kCount : 0;
  for (Index i = thread; i < groups; i += threads) {
    action.template operator()<kCount>(i * kCount);
  }
  for (Index i = groups * kCount + thread; i < count; i += threads) {
    action.template operator()<1>(i);
  }
}

/** The same where the threads of a block share a chunk. */
template <int kCount, class Action>
__device__ void for_each_group_of_block(int count, bool grouped, const Action& action) {
  for_each_group<kCount>(count, grouped, static_cast<int>(threadIdx.x), kThreads, action);
}

/** The same where all threads of the grid share the elements. */
template <int kCount, class Action>
__device__ void for_each_group_of_grid(std::int64_t count, bool grouped, const Action& action) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for_each_group<kCount>(count, grouped, thread, threads, action);
}

}  // namespace tutti::cuda
