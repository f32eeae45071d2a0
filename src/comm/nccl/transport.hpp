// Collectives between GPUs through NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/nccl/comm.hpp"
#include "comm/signature.hpp"
#include "tutti/transport.hpp"

namespace tutti::nccl {

/**
 * Launches NCCL's operations on the stream in use. This class calls NCCL alone, never CUDA.
 *
 * NCCL does not notice ranks that disagree: it hangs or writes nonsense. So the ranks compare
 * their signatures over `host` before the first operations of a communicator, as many as
 * TUTTI_GPU_CHECK says (a number, or `all`; 100 unless set). That blocks, and is no part of the
 * later ones. A send and a recv are not compared.
 */
class NcclTransport final : public DeviceTransport {
 public:
  /** `host` connects the same ranks and outlives this object. */
  NcclTransport(std::shared_ptr<Comm> comm, Transport* host, Device device);

  Device device() const override { return device_; }
  std::string describe() const override;
  void use_stream(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }

  void all_reduce(ConstView in, View out, tutti::Reduce reduce) override;
  void reduce(ConstView in, View out, tutti::Reduce reduce, int root) override;
  void broadcast(ConstView in, View out, int root) override;
  void all_gather(ConstView in, View out) override;
  void all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts) override;
  void reduce_scatter(ConstView in, View out, tutti::Reduce reduce) override;
  /** Not in place. */
  void all_to_all(ConstView in, View out) override;
  void barrier() override;
  void send(ConstView in, int destination) override;
  void recv(View out, int source) override;

  Buffer allocate(std::int64_t bytes) override;
  std::unique_ptr<DeviceTransport> split(int color, int key, Transport* host) override;
  void poll() override { comm_->poll(); }
  void cancel() noexcept override { comm_->cancel(); }

 private:
  const Library& nccl() const { return comm_->library(); }
  /** Compares a call with the other ranks', as long as calls are compared. */
  void agree(Signature signature);
  /** Runs call(op, comm) with NCCL's operator for `reduce` on `dtype`. */
  template <class Call>
  void with_operator(const char* name, const tutti::Reduce& reduce, DType dtype, const Call& call);

  std::shared_ptr<Comm> comm_;
  Transport* host_;
  Device device_;
  cudaStream_t stream_ = nullptr;
  std::int64_t compared_;  // how many calls are still to be compared
  std::uint64_t sequence_ = 0;
  Buffer scratch_;  // what a barrier adds up
};

}  // namespace tutti::nccl
