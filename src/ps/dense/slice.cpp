// Cuts dense parameters into blocks of whole rows, as Paddle's slice_variable does.
#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "base/refuse.hpp"
#include "ps/dense/layout.hpp"
#include "ps/table/rules.hpp"
#include "tutti/ps/dense.hpp"

namespace tutti::ps {
namespace {

constexpr std::int64_t kMostElements = std::numeric_limits<std::int64_t>::max() / 16;

/** Elements of a parameter's rows, or of all of it. */
std::int64_t product(const DenseParameter& parameter, std::size_t first_dimension) {
  std::int64_t elements = 1;
  for (std::size_t i = first_dimension; i < parameter.shape.size(); ++i) {
    const std::int64_t size = parameter.shape[i];
    if (size < 1) {
      refuse("dimension ", i, " of parameter '", parameter.name, "' is ", size,
             ", but must be at least 1");
    }
    if (elements > kMostElements / size) {
      refuse("parameter '", parameter.name, "' has more than ", kMostElements, " elements");
    }
    elements *= size;
  }
  return elements;
}

std::int64_t rounded_up(std::int64_t number, std::int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

/** What all blocks but the last are multiples of. */
std::int64_t unit_of(const DenseParameter& parameter) {
  const std::int64_t row = product(parameter, 1);
  if (!parameter.shared) return row;
  return row > kMostElements / kPageElements ? kMostElements : std::lcm(row, kPageElements);
}

void check(const DenseParameter& parameter) {
  const std::int64_t elements = element_count(parameter);
  const auto initial = std::ssize(parameter.initial);
  if (initial != 0 && initial != elements) {
    refuse("parameter '", parameter.name, "' has ", elements, " elements, but ", initial,
           " initial values");
  }
  check(parameter.rule, "parameter '" + parameter.name + "'");
  if (const auto* adagrad = std::get_if<Adagrad>(&parameter.rule);
      adagrad != nullptr && adagrad->row_wise) {
    refuse("the rule of parameter '", parameter.name,
           "' is row-wise Adagrad, but that is for tables: dense parameters are not kept by rows");
  }
}

void add_blocks(std::vector<Block>& blocks, const DenseParameter& parameter, std::int64_t number,
                int servers, const Slicing& slicing) {
  const std::int64_t elements = element_count(parameter);
  const std::int64_t most =
      slicing.slice ? std::min<std::int64_t>(
                          servers, std::max<std::int64_t>(1, elements / slicing.min_block_size))
                    : 1;
  const std::int64_t size = rounded_up((elements + most - 1) / most, unit_of(parameter));
  for (std::int64_t offset = 0; offset < elements; offset += size) {
    const std::int64_t block = offset / size;
    blocks.push_back({.parameter = number,
                      .number = block,
                      .offset = offset,
                      .count = std::min(size, elements - offset),
                      .name = size >= elements ? parameter.name
                                               : parameter.name + ".block" + std::to_string(block),
                      .shared = parameter.shared});
  }
}

}  // namespace

std::int64_t element_count(const DenseParameter& parameter) { return product(parameter, 0); }

std::vector<Block> slice(std::span<const DenseParameter> parameters, int servers,
                         const Slicing& slicing) {
  if (servers < 1) refuse("servers is ", servers, ", but must be at least 1");
  if (slicing.min_block_size < 1) {
    refuse("min_block_size is ", slicing.min_block_size, ", but must be at least 1");
  }
  std::set<std::string> names;
  for (const DenseParameter& parameter : parameters) {
    if (parameter.name.empty()) refuse("a dense parameter has no name");
    if (const auto end = parameter.name.find('\n'); end != std::string::npos) {
      refuse("the name of a dense parameter has a line break, behind '",
             parameter.name.substr(0, end), "'");
    }
    if (!names.insert(parameter.name).second) {
      refuse("two dense parameters have the name '", parameter.name, "'");
    }
    check(parameter);
  }
  std::vector<Block> blocks;
  std::int64_t number = 0;
  for (const DenseParameter& parameter : parameters) {
    add_blocks(blocks, parameter, number++, servers, slicing);
  }
  return blocks;
}

}  // namespace tutti::ps
