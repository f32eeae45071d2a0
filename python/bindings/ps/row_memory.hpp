// Memory for the rows that lookups give, which libraries that know DLPack own.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dlpack.hpp"
#include "shape.hpp"

namespace tutti::python {

namespace py = pybind11;

/**
 * Lends memory, and lends it again once it has come back: the allocator gives large pieces back to
 * the system, and new memory costs a page fault every 4 KiB. It lives until all has come back.
 * Threads may share it, and need not hold the GIL. There is no lock, which a forked child could
 * find held by a thread that it has not: whoever takes or gives has all that is kept meanwhile, and
 * who finds nothing gets new memory.
 */
class RowMemory : public std::enable_shared_from_this<RowMemory> {
 public:
  class Piece;
  struct GiveBack {
    void operator()(Piece* piece) const noexcept;
  };
  using Lent = std::unique_ptr<Piece, GiveBack>;

  RowMemory() = default;
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;
  ~RowMemory();

  /** Memory for floats of that shape, in C order, which hold anything. Throws InvalidArgument for a
   * shape that cannot be. */
  Lent lend(Shape shape);

 private:
  static constexpr std::size_t kMostKept = 8;
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;  // of each

  void keep(std::unique_ptr<Piece> piece) noexcept;
  /** The piece of that size which came back last, or null. */
  std::unique_ptr<Piece> kept(std::size_t count);

  /** The first kMostKept of these, and of what has come meanwhile, are kept. */
  void put_back(std::unique_ptr<Piece> pieces) noexcept;

  std::atomic<Piece*> free_{nullptr};  // owned, with those that came before it
};

class RowMemory::Piece {
 public:
  explicit Piece(std::size_t count);

  std::span<float> elements() { return {reinterpret_cast<float*>(lines_.get()), count_}; }

  /** What it is as DLPack has it, whose deleter gives it back. */
  dlpack::Managed& managed();

 private:
  friend RowMemory;
  struct alignas(64) Line {
    std::array<float, 16> floats;
  };

  std::size_t count_;
  std::unique_ptr<Line[]> lines_;
  Shape shape_ = {};
  dlpack::Managed managed_ = {};
  std::shared_ptr<RowMemory> of_ = {};  // while it is lent
  std::unique_ptr<Piece> next_ = {};    // while it is kept: the one that came before it
};

/** A capsule that has `rows` until somebody takes it. */
py::object to_dlpack(RowMemory::Lent rows);

}  // namespace tutti::python
