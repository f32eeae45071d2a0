// Memory of links into which a worker writes gradients, so that pushing them copies nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ps/modes/servers.hpp"

namespace tutti::ps {

/**
 * A gradient of one dense parameter that lies where the servers read it, a piece for each of them,
 * and one after the other for the worker. Links never get this memory back: who has been shown it
 * may write there for as long as the worker lives. Not thread-safe, but for what Held does.
 */
class PlacedGradient {
 public:
  class Held;

  /** Whether there can be one: its servers are on this host, its blocks are whole pages, and it is
   * large enough that to copy it takes longer than to send it by itself. */
  static bool is_possible(const Servers& servers, int parameter);
  /** Throws SystemError and PeerLost. */
  PlacedGradient(const Servers& servers, int parameter);
  PlacedGradient(const PlacedGradient&) = delete;
  PlacedGradient& operator=(const PlacedGradient&) = delete;
  ~PlacedGradient() = default;

  const float* data() const { return elements_.data(); }
  DenseGradient memory() const { return {mapping_, elements_}; }
  /** Whether the worker may write there: it is in no batch, and no server reads it any more. Throws
   * PeerLost. */
  bool is_free() const;

 private:
  struct Part {
    Link* link;
    Draft draft;
    std::uint64_t request = 0;  ///< that has been sent last
  };

  std::vector<Part> parts_;  // one for each piece
  std::shared_ptr<const shm::Mapping> mapping_;
  std::span<float> elements_;
  std::atomic<int> held_{0};  // pieces
};

/** Keeps a piece from being free, while it is in a batch. */
class PlacedGradient::Held {
 public:
  Held(std::shared_ptr<PlacedGradient> gradient, std::size_t piece)
      : gradient_(std::move(gradient)), piece_(piece) {
    ++gradient_->held_;
  }
  Held(Held&&) noexcept = default;
  Held& operator=(Held&& other) noexcept {
    std::swap(gradient_, other.gradient_);
    std::swap(piece_, other.piece_);
    return *this;
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (gradient_) --gradient_->held_;
  }

  const Draft& draft() const { return part().draft; }
  float* elements() const { return reinterpret_cast<float*>(draft().payload.data()); }
  /** It is on its way, as this request. */
  void sent_as(std::uint64_t request) { part().request = request; }

 private:
  Part& part() const { return gradient_->parts_[piece_]; }

  std::shared_ptr<PlacedGradient> gradient_;
  std::size_t piece_;
};

/** What a worker writes gradients to. Not thread-safe. */
class GradientMemory {
 public:
  explicit GradientMemory(const Servers& servers);

  /** Memory for a parameter's gradient that nobody reads: placed if possible, at most two for each
   * parameter, and otherwise such as is copied. Throws SystemError and PeerLost. */
  DenseGradient of(int parameter);
  /** Which one's memory this is; null: it is to be copied. */
  std::shared_ptr<PlacedGradient> find(int parameter, const float* gradient) const;

 private:
  static constexpr std::size_t kMostPlaced = 2;
  struct OfParameter {
    bool can_be_placed = false;
    std::int64_t elements = 0;
    std::vector<std::shared_ptr<PlacedGradient>> placed{};
    std::shared_ptr<std::vector<float>> copied{};
  };

  const Servers& servers_;
  std::vector<OfParameter> parameters_;
};

}  // namespace tutti::ps
