// Drafts that stay a worker's, mapped as one stretch of memory.
#include "ps/modes/placed_gradient.hpp"

#include <algorithm>
#include <span>

#include "base/page_size.hpp"
#include "ps/dense/layout.hpp"
#include "ps/dense/view.hpp"

namespace tutti::ps {
namespace {

/** A request takes about a microsecond, and so do copies of so many elements. */
constexpr std::int64_t kLeast = 4096;

std::int64_t elements_of(const Servers& servers, int parameter) {
  std::int64_t elements = 0;
  for (const Servers::Piece& piece : servers.pieces(parameter)) elements += piece.count;
  return elements;
}

}  // namespace

bool PlacedGradient::is_possible(const Servers& servers, int parameter) {
  const auto is_at_hand = [&](const Servers::Piece& piece) {
    const ServerEnd& end = servers.end(piece.server);
    return end.link->on_this_host() && end.blocks[piece.block].shared;
  };
  return kPageBytes % page_size() == 0 && elements_of(servers, parameter) >= kLeast &&
         std::ranges::all_of(servers.pieces(parameter), is_at_hand);
}

PlacedGradient::PlacedGradient(const Servers& servers, int parameter) {
  const std::span<const Servers::Piece> pieces = servers.pieces(parameter);
  try {
    for (const Servers::Piece& piece : pieces) {
      Link& link = servers.link(piece.server);
      parts_.push_back({&link, servers.draft_block(piece.server, piece.count)});
    }
    std::vector<std::size_t> order(pieces.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](std::size_t i) { return pieces[i].in_parameter; });
    std::vector<std::span<const float>> ordered;
    for (const std::size_t i : order) {
      ordered.emplace_back(reinterpret_cast<const float*>(parts_[i].draft.payload.data()),
                           static_cast<std::size_t>(pieces[i].count));
    }
    mapping_ = map_again(ordered, shm::Access::read_write);
  } catch (...) {
    for (const Part& part : parts_) part.link->discard(part.draft);
    throw;
  }
  elements_ = {reinterpret_cast<float*>(mapping_->base()),
               static_cast<std::size_t>(elements_of(servers, parameter))};
}

bool PlacedGradient::is_free() const {
  return held_ == 0 && std::ranges::all_of(parts_, [](const Part& part) {
           return part.link->answered() >= part.request;
         });
}

GradientMemory::GradientMemory(const Servers& servers) : servers_(servers) {
  for (int parameter = 0; parameter < servers.parameters(); ++parameter) {
    parameters_.push_back(
        {PlacedGradient::is_possible(servers, parameter), elements_of(servers, parameter)});
  }
}

DenseGradient GradientMemory::of(int parameter) {
  OfParameter& own = parameters_[static_cast<std::size_t>(parameter)];
  if (own.can_be_placed) {
    for (const auto& placed : own.placed) {
      if (placed->is_free()) return placed->memory();
    }
    if (own.placed.size() < kMostPlaced) {
      own.placed.push_back(std::make_shared<PlacedGradient>(servers_, parameter));
      return own.placed.back()->memory();
    }
  }
  if (!own.copied) {
    own.copied = std::make_shared<std::vector<float>>(static_cast<std::size_t>(own.elements));
  }
  return {own.copied, *own.copied};
}

std::shared_ptr<PlacedGradient> GradientMemory::find(int parameter, const float* gradient) const {
  const auto& placed = parameters_[static_cast<std::size_t>(parameter)].placed;
  const auto found = std::ranges::find(placed, gradient, &PlacedGradient::data);
  return found == placed.end() ? nullptr : *found;
}

}  // namespace tutti::ps
