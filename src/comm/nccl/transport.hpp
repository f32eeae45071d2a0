// Collectives between GPUs through NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/agreement.hpp"
#include "comm/nccl/comm.hpp"
#include "comm/signature.hpp"
#include "tutti/transport.hpp"

namespace tutti::nccl {

/**
 * Launches NCCL's operations on the stream in use. This class calls NCCL alone, never CUDA.
 *
 * NCCL does not notice ranks that disagree: it hangs or writes nonsense. So the ranks compare
 * their signatures over `cpu_transport` before the first operations of a communicator, as many as
 * TUTTI_GPU_CHECK says (a number, or `all`; 100 unless set). That blocks, and is no part of the
 * later ones. Messages between two ranks are not compared.
 */
class NcclTransport final : public DeviceTransport {
 public:
  /** `cpu_transport` connects the same ranks and outlives this object's calls. Of these, `compared`
   * are compared, as many as on the other ranks. */
  NcclTransport(std::shared_ptr<Comm> comm, Transport* cpu_transport, Device device,
                std::int64_t compared = gpu_calls_to_compare());

  Device device() const override { return device_; }
  std::string describe() const override;
  void use_stream(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }
  void run(const Call& call) override;
  Buffer allocate(std::int64_t bytes) override;
  std::unique_ptr<DeviceTransport> split(int color, int key, Transport* cpu_transport) override;
  void poll() override { comm_->poll(); }
  void cancel() noexcept override { comm_->cancel(); }

 private:
  const Library& nccl() const { return comm_->library(); }
  void all_reduce(const Call& call);
  void reduce(const Call& call);
  void broadcast(const Call& call);
  void all_gather(const Call& call);
  void all_gather_v(const Call& call);
  void reduce_scatter(const Call& call);
  /** Not in place. */
  void exchange_blocks(const Call& call);
  void reduce_scatter_v(const Call& call);
  ncclResult_t reduce_parts(const Call& call, ncclRedOp_t op, ncclComm_t comm);
  void barrier();
  void send(const Call& call);
  void recv(const Call& call);
  void exchange(std::span<const Message> messages);
  ncclResult_t launch(const Message& message, ncclComm_t comm);
  /** Compares a collective with the other ranks', as long as calls are compared. */
  void agree(const Call& call);
  /** Runs launch(op, comm) with NCCL's operator for `reduce` on `dtype`. */
  template <class Launch>
  void with_operator(const char* name, const Reduce& reduce, DType dtype, const Launch& launch);

  std::shared_ptr<Comm> comm_;
  Transport* cpu_transport_;
  Device device_;
  cudaStream_t stream_ = nullptr;
  const std::int64_t to_compare_;  // of this transport's calls, and of each part's
  std::int64_t compared_ = 0;
  Buffer scratch_;  // what a barrier adds up
};

}  // namespace tutti::nccl
