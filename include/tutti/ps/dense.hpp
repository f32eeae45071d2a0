// Dense parameters on servers: how they are cut into blocks, and which server has which block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** A parameter of f32 elements, alike on all workers and servers but for `initial`. */
struct DenseParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  Rule rule = Sgd{};
  /** The values that training begins with; those of worker 0 count. */
  std::vector<float> initial;
  /** Workers may read it where its servers have it: see Worker::view_dense(). */
  bool shared = false;
};

/** A part of a dense parameter: whole rows (all but its first dimension); of a shared one also
 * whole pages of memory, of 4 KiB. */
struct Block {
  std::int64_t parameter = 0;  ///< its number
  std::int64_t number = 0;     ///< of the block in it
  std::int64_t offset = 0;     ///< in elements
  std::int64_t count = 0;
  std::string name;     ///< "weight.block0", or "weight" if it is whole
  bool shared = false;  ///< as the parameter
};

/** A server for each block, from 0 to servers - 1. Alike on all ranks: what they chose is compared.
 */
using Dispatcher = std::function<std::vector<int>(std::span<const Block> blocks, int servers)>;
/** The blocks in turns. */
Dispatcher round_robin();
/** By a hash of the name (FNV-1a) that is the same on all machines. */
Dispatcher hash_name();

/** As Paddle's DistributeTranspilerConfig has them. */
struct Slicing {
  bool slice = true;                   ///< slice_var_up; otherwise parameters stay whole
  std::int64_t min_block_size = 8192;  ///< elements
  Dispatcher dispatcher = round_robin();
};

/**
 * The blocks of parameters, by the formula of Paddle's slice_variable: of one with n elements there
 * are min(servers, max(1, n / min_block_size)), all but the last of equal size, which is rounded up
 * to whole rows, of a shared parameter also to whole pages; so there may be fewer. Throws
 * InvalidArgument for a parameter without a name of its own, with a dimension below 1, with another
 * number of initial values, or with a rule for rows.
 */
std::vector<Block> slice(std::span<const DenseParameter> parameters, int servers,
                         const Slicing& slicing);

/** A dense parameter in its servers' memory, which cannot be written here: SIGSEGV ends who tries.
 * The memory stays as long as one of these is there, after the worker and the servers, too; it has
 * the last values then. */
class DenseView {
 public:
  DenseView(std::shared_ptr<const void> memory, std::span<const float> values)
      : memory_(std::move(memory)), values_(values) {}

  /** Of all its elements, as they are now. None is torn, but each may change at any time that the
   * mode leaves open. */
  std::span<const float> values() const { return values_; }

 private:
  std::shared_ptr<const void> memory_;
  std::span<const float> values_;
};

/** Memory to write the gradient of a dense parameter to, which is to be pushed. It stays as long as
 * one of these is there. */
class DenseGradient {
 public:
  DenseGradient(std::shared_ptr<const void> memory, std::span<float> elements)
      : memory_(std::move(memory)), elements_(elements) {}

  /** Of all the parameter's elements. */
  std::span<float> elements() const { return elements_; }

 private:
  std::shared_ptr<const void> memory_;
  std::span<float> elements_;
};

}  // namespace tutti::ps
