// The kernels of one instruction set as a table of functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"
#include "tutti/reduce.hpp"

namespace tutti::cpu {

inline constexpr int kIsaCount = 3;

/** What a reduction reads and writes. Plain pointers: see vector.hpp for why. */
struct ReduceArguments {
  void* const* outs = nullptr;
  std::int64_t out_count = 0;
  std::int64_t plain_count = 0;  ///< outputs from here on are written past the caches, aligned
  const void* const* ins = nullptr;
  std::int64_t in_count = 0;
  std::int64_t count = 0;
  double factor = 1.0;
  std::int64_t divisor = 1;
  bool is_signed = false;  ///< of integers, which are divided so
};

struct KernelTable {
  using ReduceFunction = void (*)(const ReduceArguments& arguments);
  using SgdFunction = void (*)(float* parameter, const float* gradient, float* velocity,
                               std::int64_t count, const SgdStep& step);
  using AdamFunction = void (*)(const AdamPiece& piece, const AdamStep& step);
  using AdagradFunction = void (*)(const AdagradPiece& piece, const AdagradStep& step);
  using MarkFunction = void (*)(const float* gradient, float* residual, std::int64_t count,
                                std::uint32_t least, std::uint64_t* marks);
  using NarrowFunction = void (*)(const float* from, void* to, std::int64_t count,
                                  const Narrowing& narrowing);
  using WidenFunction = std::int64_t (*)(const void* from, float* to, std::int64_t count,
                                         float factor);
  using AccumulateFunction = void (*)(float* sum, const float* term, std::int64_t count,
                                      float decay, float scale);
  using NormFunction = double (*)(const float* elements, std::int64_t count);

  /** One function for each DType and ReduceKind; null where has_reduction() is false. */
  std::array<std::array<ReduceFunction, kReduceKindCount>, kDTypeCount> reduce{};
  SgdFunction sgd_update = nullptr;
  AdamFunction adam_update = nullptr;
  AdagradFunction adagrad_update = nullptr;
  MarkFunction mark = nullptr;
  std::array<NarrowFunction, 2> narrow{};  // to f16, to bf16
  std::array<WidenFunction, 2> widen{};    // from f16, from bf16
  AccumulateFunction accumulate = nullptr;
  NormFunction squared_norm = nullptr;
  /** Copies bytes to whole lines past the caches; returns how many, leaving a rest. */
  std::int64_t (*stream_lines)(void* to, const void* from, std::int64_t bytes) = nullptr;
};

/** "portable", "avx2" or "avx512". */
const char* name_of(Isa isa);

/** The kernels of `isa`, or null where this machine or this build does not run it. */
const KernelTable* find_table(Isa isa);

/** The kernels of `isa`. Throws InvalidArgument where this machine or build does not run it. */
const KernelTable& table(Isa isa);

/**
 * The instruction set that `request`, the value of TUTTI_ISA, asks for; the best one if it is
 * null. Throws InvalidArgument for an unknown name and for one that this machine does not run.
 */
Isa choose_isa(const char* request);

/** As reduce() and sgd_update() of kernels.hpp, with the kernels of `table`. */
void reduce(const KernelTable& table, std::span<void* const> outs, std::span<const void* const> ins,
            std::int64_t count, DType dtype, const Combine& combine, Stores stores = {});

// Constants, so that no code of an instruction set runs before the machine is known to have it.
extern const KernelTable kPortableTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;

}  // namespace tutti::cpu
