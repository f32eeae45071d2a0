// Chooses servers for the blocks of dense parameters.
#include <string>
#include <utility>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "ps/dense/layout.hpp"
#include "tutti/ps/dense.hpp"

namespace tutti::ps {
namespace {

template <class Chooser>
Dispatcher each(Chooser chooser) {
  return [chooser](std::span<const Block> blocks, int servers) {
    std::vector<int> chosen;
    chosen.reserve(blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      chosen.push_back(static_cast<int>(chooser(i, blocks[i]) % static_cast<unsigned>(servers)));
    }
    return chosen;
  };
}

}  // namespace

Dispatcher round_robin() {
  return each([](std::size_t place, const Block&) { return std::uint64_t{place}; });
}

Dispatcher hash_name() {
  return each([](std::size_t, const Block& block) { return hash_text(block.name); });
}

DenseLayout lay_out(std::span<const DenseParameter> parameters, int servers,
                    const Slicing& slicing) {
  std::vector<Block> blocks = slice(parameters, servers, slicing);
  if (!slicing.dispatcher) refuse("dispatcher is empty");
  const std::vector<int> chosen = slicing.dispatcher(blocks, servers);
  if (chosen.size() != blocks.size()) {
    refuse("the dispatcher chose ", chosen.size(), " servers for ", blocks.size(), " blocks");
  }
  DenseLayout layout(static_cast<std::size_t>(servers));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (chosen[i] < 0 || chosen[i] >= servers) {
      refuse("the dispatcher chose server ", chosen[i], " for '", blocks[i].name,
             "', but there are ", servers, " servers");
    }
    layout[static_cast<std::size_t>(chosen[i])].push_back(std::move(blocks[i]));
  }
  return layout;
}

std::int64_t begin_of(const Block& block, std::int64_t elements) {
  if (!block.shared) return elements;
  return (elements + kPageElements - 1) / kPageElements * kPageElements;
}

std::int64_t element_count(std::span<const Block> blocks) {
  std::int64_t end = 0;
  for (const Block& block : blocks) end = begin_of(block, end) + block.count;
  return end;
}

std::uint64_t hash_of(const DenseLayout& layout) {
  std::string text;
  for (const std::vector<Block>& blocks : layout) {
    for (const Block& block : blocks) {
      text += std::to_string(block.parameter) + ":" + std::to_string(block.offset) + "+" +
              std::to_string(block.count) + " ";
    }
    text += "| ";
  }
  return hash_text(text);
}

}  // namespace tutti::ps
