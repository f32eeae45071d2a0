// How kernels are launched, and how a list of tensors is spread over blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "communicator/cuda/check.hpp"
#include "tutti/device.hpp"

namespace tutti::cuda {

inline constexpr int kThreads = 256;                  ///< of a block
inline constexpr int kPerThread = 16;                 ///< elements, in groups of kGroup
inline constexpr int kGroup = 4;                      ///< elements of one access
inline constexpr int kChunk = kThreads * kPerThread;  ///< elements of a block

inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

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

/** Cuts `pieces` into lists and calls launch(list, blocks) for each. */
template <int kMost, class Piece, class Launch>
void for_each_list(std::span<const Piece> pieces, const Launch& launch) {
  constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;  // of a grid
  PieceList<Piece, kMost> list{};
  std::int64_t blocks = 0;
  const auto flush = [&] {
    if (list.count == 0) return;
    list.first_block[list.count] = static_cast<unsigned>(blocks);
    launch(list, static_cast<unsigned>(blocks));
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

/** Whether groups of elements of type T may be read from `data` as one. */
template <class T>
__device__ bool takes_groups(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % (kGroup * sizeof(T)) == 0;
}

}  // namespace tutti::cuda
