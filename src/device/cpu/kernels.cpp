// Chooses the instruction set, and calls its kernels.
#include "device/cpu/kernels.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "base/environment.hpp"
#include "base/memory.hpp"
#include "device/cpu/kernel_table.hpp"
#include "tutti/error.hpp"

namespace tutti::cpu {
namespace {

constexpr std::array<Isa, kIsaCount> kStrongestFirst{Isa::avx512, Isa::avx2, Isa::portable};

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kFewestStreamed = 2 * kLine;  // bytes: less is not worth the fence

/** Bytes from `address` to the start of a cache line. */
std::int64_t to_line(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::int64_t>((kLine - number % kLine) % kLine);
}

bool on_a_line(std::span<void* const> addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const void* address) { return to_line(address) == 0; });
}

const KernelTable& active_table() {
  static const KernelTable& active = table(active_isa());
  return active;
}

/** The place of f16 or bf16 in the table's functions. */
std::size_t wire_index(DType wire) {
  if (wire != DType::f16 && wire != DType::bf16) {
    throw InvalidArgument("wire is " + std::string(tutti::name_of(wire)) +
                          ", but must be f16 or bf16");
  }
  return wire == DType::f16 ? 0 : 1;
}

}  // namespace

const char* name_of(Isa isa) {
  constexpr std::array<const char*, kIsaCount> kNames{"portable", "avx2", "avx512"};
  return kNames[static_cast<std::size_t>(isa)];
}

const KernelTable& table(Isa isa) {
  const KernelTable* found = find_table(isa);
  if (found == nullptr) {
    throw InvalidArgument(std::string("the instruction set '") + name_of(isa) +
                          "' was asked for, but this machine does not run it");
  }
  return *found;
}

Isa choose_isa(const char* request) {
  for (const Isa isa : kStrongestFirst) {
    if (request == nullptr) {
      if (find_table(isa) != nullptr) return isa;
    } else if (std::string(request) == name_of(isa)) {
      if (find_table(isa) != nullptr) return isa;
      throw InvalidArgument(std::string("TUTTI_ISA is '") + request +
                            "', which this machine does not run");
    }
  }
  throw InvalidArgument(std::string("TUTTI_ISA is '") + request +
                        "', but must be portable, avx2 or avx512");
}

Isa active_isa() {
  static const Isa chosen = [] {
    const auto request = environment("TUTTI_ISA");
    return choose_isa(request ? request->c_str() : nullptr);
  }();
  return chosen;
}

void reduce(const KernelTable& table, std::span<void* const> outs, std::span<const void* const> ins,
            std::int64_t count, DType dtype, const Combine& combine, Stores stores) {
  const auto kernel =
      table.reduce[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(combine.kind)];
  const auto out_count = static_cast<std::int64_t>(outs.size());
  const std::int64_t plain_count = std::min(stores.plain, out_count);
  ReduceArguments arguments{.outs = outs.data(),
                            .out_count = out_count,
                            .plain_count = out_count,
                            .ins = ins.data(),
                            .in_count = static_cast<std::int64_t>(ins.size()),
                            .count = count,
                            .factor = combine.factor,
                            .divisor = combine.divisor,
                            .is_signed = is_signed_integer(dtype)};
  if (plain_count < out_count && count * size_of(dtype) >= kFewestStreamed &&
      on_a_line(outs.subspan(static_cast<std::size_t>(plain_count)))) {
    arguments.plain_count = plain_count;
  }
  kernel(arguments);
}

void reduce(std::span<void* const> outs, std::span<const void* const> ins, std::int64_t count,
            DType dtype, const Combine& combine, Stores stores) {
  reduce(active_table(), outs, ins, count, dtype, combine, stores);
}

void copy(void* to, const void* from, std::int64_t bytes, bool streamed) {
  std::int64_t done = 0;
  if (streamed && bytes >= kFewestStreamed) {
    done = to_line(to);
    copy_bytes(to, from, done);
    done += active_table().stream_lines(static_cast<std::byte*>(to) + done,
                                        static_cast<const std::byte*>(from) + done, bytes - done);
  }
  copy_bytes(static_cast<std::byte*>(to) + done, static_cast<const std::byte*>(from) + done,
             bytes - done);
}

void sgd_update(float* parameter, const float* gradient, float* velocity, std::int64_t count,
                const SgdStep& step) {
  active_table().sgd_update(parameter, gradient, velocity, count, step);
}

void adam_update(const AdamPiece& piece, const AdamStep& step) {
  active_table().adam_update(piece, step);
}

void adagrad_update(const AdagradPiece& piece, const AdagradStep& step) {
  active_table().adagrad_update(piece, step);
}

void mark(const float* gradient, float* residual, std::int64_t count, std::uint32_t least,
          std::uint64_t* marks) {
  active_table().mark(gradient, residual, count, least, marks);
}

void narrow(const float* from, void* to, std::int64_t count, DType wire,
            const Narrowing& narrowing) {
  active_table().narrow[wire_index(wire)](from, to, count, narrowing);
}

std::int64_t widen(const void* from, float* to, std::int64_t count, DType wire, float factor) {
  return active_table().widen[wire_index(wire)](from, to, count, factor);
}

void accumulate(float* sum, const float* term, std::int64_t count, float decay, float scale) {
  active_table().accumulate(sum, term, count, decay, scale);
}

double squared_norm(const float* elements, std::int64_t count) {
  return active_table().squared_norm(elements, count);
}

}  // namespace tutti::cpu
