// One server's blocks of the dense parameters, in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/ps/dense.hpp"

namespace tutti::ps {

/** A block, and what files have to know of its parameter. */
struct OwnBlock {
  Block block;
  Rule rule;
  std::string parameter{};    ///< its name
  std::int64_t elements = 0;  ///< of the whole parameter
};

/** What is pushed for a block. */
struct BlockGradient {
  std::int64_t block = 0;  ///< its number among the server's
  std::span<const float> elements;
};

/**
 * The blocks lie one after the other, shared ones each from a page on (begin_of()); so do values
 * that travel. Only the server changes them. Not
 * thread-safe, but for readers of the memory, who never see a part of an element.
 */
class DenseStore {
 public:
  /** Makes a shared memory object of that name, for DenseReader; an empty name: private memory.
   * Throws SystemError. */
  DenseStore(std::vector<OwnBlock> blocks, const std::string& segment);
  DenseStore(DenseStore&&) noexcept;
  DenseStore& operator=(DenseStore&&) noexcept;
  DenseStore(const DenseStore&) = delete;
  DenseStore& operator=(const DenseStore&) = delete;
  ~DenseStore();

  /** Removes the object's name, as the destructor does otherwise; the memory stays. */
  void unlink();
  std::int64_t elements() const;
  std::span<const OwnBlock> blocks() const;

  void set(std::span<const float> values);
  /** A block's rule, and one more of its steps; the gradient is multiplied by `scale` first. */
  void update(const BlockGradient& gradient, float scale);
  /** One step with the sum of several gradients of the block, added up in their order. */
  void update(std::int64_t block, std::span<const float* const> gradients, float scale);
  /** values += deltas, without a rule (GEO). */
  void add(std::span<const float> deltas);
  std::span<const float> values() const;

  // For files.
  std::span<const float> values(std::int64_t block) const;
  std::span<const float> state(std::int64_t block) const;  ///< of its rule: arrays, then its steps
  void restore(std::int64_t block, std::span<const float> values, std::span<const float> state);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/** Reads a server's blocks on the same host. */
class DenseReader {
 public:
  /** Throws SystemError. */
  DenseReader(const std::string& segment, std::int64_t elements);
  DenseReader(DenseReader&&) noexcept;
  DenseReader& operator=(DenseReader&&) noexcept;
  DenseReader(const DenseReader&) = delete;
  DenseReader& operator=(const DenseReader&) = delete;
  ~DenseReader();

  std::span<const float> values() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::ps
