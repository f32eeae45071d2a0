// Sums over the ranks that were started and not waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "opt/staging.hpp"
#include "tutti/communicator.hpp"
#include "tutti/select.hpp"

namespace tutti {

/** Which elements sparsification() sends. */
struct Sparsity {
  double spars;
  bool top_k;
};

/** What DistOpt's sums do, and its wait(); see there. */
class PendingSums {
 public:
  /** `half` is in which type the half sums travel. */
  PendingSums(std::shared_ptr<Communicator> communicator, DType half);

  /** Starts the sum of `tensor`, in place. */
  void start(View tensor);
  void start_half(View tensor);
  /** Starts the sum of what is selected of `tensors`, taken as one. */
  void start_sparse(const char* method, std::span<const View> tensors,
                    std::optional<View> accumulation, const Sparsity& sparsity);

  /** How fused tensors travel. */
  enum class Fused { as_they_are, half };
  /** Puts `tensors` behind what was filled before. Collective where the buffer has to grow. */
  void fill(std::span<const View> tensors, Fused kind);
  /** Starts one sum of all that was filled. `tensors` must be that, in order. */
  void send(std::span<const View> tensors, Fused kind);

  /** Ends what was started. */
  void wait();
  /** Whether anything was started that wait() has not ended. */
  bool any() const { return !sums_.empty(); }

 private:
  struct Sum {
    Event arrival;
    View packet{};                         // where the sum arrives, unless in the tensor itself
    std::vector<View> tensors{};           // to which it is then copied, one after the other
    std::vector<std::uint32_t> indices{};  // of a sparse packet
    std::vector<float> values{};
  };

  const Stream& stream();
  void check_fill(std::span<const View> tensors, Fused kind) const;
  void check_send(std::span<const View> tensors, Fused kind) const;
  void narrow(View tensor, View packet) const;
  SparseView select(Sum& sum, ConstView from, View residual, const Sparsity& sparsity);
  void deliver(const Sum& sum) const;

  std::shared_ptr<Communicator> communicator_;
  DType half_;
  std::vector<View> filled_;  // what lies in the last packet of fused_
  Fused filled_kind_ = Fused::as_they_are;
  Selector selector_;
  Staging fused_;
  Staging single_;
  std::vector<Sum> sums_;
  Stream stream_;  // inline until the first sum; ends before the packets
};

}  // namespace tutti
