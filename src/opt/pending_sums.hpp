// Sums over the ranks that were started and not waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/arithmetic.hpp"
#include "opt/gathered_sum.hpp"
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
  /** `half` is in which type the half sums travel, `stream` DistOptions::stream. */
  PendingSums(std::shared_ptr<Communicator> communicator, DType half, Stream stream);
  PendingSums(const PendingSums&) = delete;
  PendingSums& operator=(const PendingSums&) = delete;
  /** Waits for what is under way, at most until the deadline. */
  ~PendingSums();

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
  /** What the sums of tensors on one device need. */
  struct Site {
    Site(const std::shared_ptr<Communicator>& communicator, const Stream& home);
    const Stream& home() const { return arithmetic->stream(); }
    /** Has what is started on `apart` come after what `home` was given. */
    const Stream& departure() const;

    std::shared_ptr<Arithmetic> arithmetic;  // on `home`, where tensors are made and read
    Staging fused;
    Staging single;
    Stream apart;  // on which sums travel; ends before the packets
  };

  struct Sum {
    Event arrival{};
    Site* site = nullptr;
    View packet{};                         // where the sum arrives, unless in the tensor itself
    std::vector<View> tensors{};           // to which it is then copied, one after the other
    std::vector<std::uint32_t> indices{};  // of a sparse packet
    std::vector<float> values{};
    std::optional<GatheredSum> gathered{};  // or of one between GPUs
  };

  Site& site(Device device);
  void check_fill(std::span<const View> tensors, Fused kind) const;
  void check_send(std::span<const View> tensors, Fused kind) const;
  void pack(Site& site, std::span<const View> tensors, View packet) const;
  SparseView select(Sum& sum, ConstView from, View residual, const Sparsity& sparsity);
  static void gather(GatheredSum& sum, ConstView from, View residual, const Sparsity& sparsity);
  void deliver(const Sum& sum) const;

  std::shared_ptr<Communicator> communicator_;
  DType half_;
  Stream stream_;
  std::vector<View> filled_;  // what lies in the last packet of its site
  Fused filled_kind_ = Fused::as_they_are;
  Selector selector_;
  std::vector<Sum> sums_;
  std::unique_ptr<Site> cpu_;  // made by the first sum there; ends before what it works on
  std::unique_ptr<Site> gpu_;
};

}  // namespace tutti
