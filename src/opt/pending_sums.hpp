// Sums over the ranks that were started and not waited for.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/arithmetic.hpp"
#include "opt/compressors/half.hpp"
#include "opt/compressors/plain.hpp"
#include "opt/compressors/sparse.hpp"
#include "opt/compressors/staging.hpp"
#include "tutti/communicator.hpp"

namespace tutti {

/** Which elements sparsification() sends. */
struct Sparsity {
  double spars;
  bool top_k;
};

/** What DistOpt's sums do, and its wait(); see there. They travel as the buckets of a step do. */
class PendingSums {
 public:
  /** `half` is in which type the half sums travel, `stream` DistOptions::stream. */
  PendingSums(std::shared_ptr<Communicator> communicator, DType half, Stream stream);
  PendingSums(const PendingSums&) = delete;
  PendingSums& operator=(const PendingSums&) = delete;
  /** Waits for what is under way, at most until the deadline. */
  ~PendingSums();

  /** How tensors travel. */
  enum class Wire { as_they_are, half };
  /** Starts the sum of `tensor`, in place. */
  void start(View tensor, Wire wire);
  /** Starts the sum of what is selected of `tensors`, taken as one. */
  void start_sparse(const char* method, std::span<const View> tensors,
                    std::optional<View> accumulation, const Sparsity& sparsity);

  /** Puts `tensors` behind what was filled before. Collective where the buffer has to grow. */
  void fill(std::span<const View> tensors, Wire wire);
  /** Starts one sum of all that was filled. `tensors` must be that, in order. */
  void send(std::span<const View> tensors, Wire wire);

  /** Ends what was started. What fails after all of it has arrived, every further wait throws. */
  void wait();
  /** Whether anything was started that wait() has not ended. */
  bool any() const { return !sums_.empty(); }

 private:
  /** What the sums of tensors on one device need. */
  struct Site {
    Site(const std::shared_ptr<Communicator>& communicator, const Stream& home, DType wire);
    const Stream& home() const { return arithmetic->stream(); }
    Compressor& dense(Wire wire);
    /** Has what is started on `apart` come after what `home` was given. */
    const Stream& departure() const;
    /** Nothing is under way. */
    void clear();

    std::shared_ptr<Arithmetic> arithmetic;  // on `home`, where tensors are made and read
    Staging filled;
    Staging joined;  // tensors that are taken as one at once
    PlainCompressor plain;
    HalfCompressor half;
    std::unique_ptr<SparseCompressor> sparse;
    Stream apart;  // on which sums travel; ends before the packets
  };

  struct Sum {
    Site* site = nullptr;
    Compressor* compressor = nullptr;
    BucketView elements;          // whose sum arrives there
    std::vector<View> tensors{};  // to which it is then copied, one after the other
    Event arrival{};
  };

  Site& site(Device device);
  void check_fill(std::span<const View> tensors, Wire wire) const;
  void check_send(std::span<const View> tensors, Wire wire) const;
  void add(Sum sum);

  std::shared_ptr<Communicator> communicator_;
  DType half_;
  Stream stream_;
  std::vector<View> filled_;  // what lies in the last packet of its site
  Wire filled_wire_ = Wire::as_they_are;
  std::vector<Sum> sums_;
  std::exception_ptr failure_;
  std::unique_ptr<Site> cpu_;  // made by the first sum there; ends before what it works on
  std::unique_ptr<Site> gpu_;
};

}  // namespace tutti
