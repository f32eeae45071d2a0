// Stretches of memory that arithmetic works on, alone or in lists.
#pragma once

#include <cstdint>

namespace tutti {

/** `count` elements that become as many others. */
struct Piece {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t count = 0;
};

/** What SGD updates; velocity is null where momentum is 0. */
struct SgdPiece {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* velocity = nullptr;  ///< of all pieces of a call, or of none
  std::int64_t count = 0;
};

/** What Adam updates, and its two means. */
struct AdamPiece {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* first = nullptr;
  float* second = nullptr;
  std::int64_t count = 0;
};

/** What Adagrad updates, and its sum of squares. */
struct AdagradPiece {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* sum = nullptr;
  std::int64_t count = 0;
};

}  // namespace tutti
