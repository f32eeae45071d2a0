// Each collective as NCCL's own, or as a group of its calls.
#include "comm/nccl/transport.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "comm/blocks.hpp"
#include "comm/nccl/types.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

NcclTransport::NcclTransport(std::shared_ptr<Comm> comm, Transport* cpu_transport, Device device,
                             std::int64_t compared)
    : comm_(std::move(comm)),
      cpu_transport_(cpu_transport),
      device_(device),
      to_compare_(compared) {}

std::string NcclTransport::describe() const {
  return "NCCL " + version_text(nccl().version) + " (" + nccl().path + ") between " +
         std::to_string(cpu_transport_->size()) + " GPUs, this one is number " +
         std::to_string(device_.ordinal);
}

void NcclTransport::run(const Call& call) {
  agree(call);
  switch (call.operation) {
    case Operation::all_reduce:
      return all_reduce(call);
    case Operation::reduce:
      return reduce(call);
    case Operation::broadcast:
      return broadcast(call);
    case Operation::all_gather:
      return all_gather(call);
    case Operation::all_gather_v:
      return all_gather_v(call);
    case Operation::reduce_scatter:
      return reduce_scatter(call);
    case Operation::reduce_scatter_v:
      return reduce_scatter_v(call);
    case Operation::gather:
    case Operation::gather_v:
    case Operation::scatter:
    case Operation::scatter_v:
    case Operation::all_to_all:
    case Operation::all_to_all_v:
      return exchange_blocks(call);
    case Operation::barrier:
      return barrier();
    case Operation::send:
      return send(call);
    case Operation::recv:
      return recv(call);
    case Operation::exchange:
      return exchange(call.messages);
    default:
      throw BackendUnavailable(std::string(name_of(call.operation)) + " is not done between GPUs");
  }
}

void NcclTransport::agree(const Call& call) {
  if (compared_ >= to_compare_ || call.is_message()) return;
  ++compared_;
  Signature signature = Signature::of(call);
  signature.sequence = static_cast<std::uint64_t>(compared_);
  const RankSignature own{cpu_transport_->rank(), signature};
  std::vector<RankSignature> all(static_cast<std::size_t>(cpu_transport_->size()));
  constexpr std::int64_t kEntry = sizeof(RankSignature);
  cpu_transport_->run(
      Call::all_gather(ConstView(&own, kEntry, DType::u8),
                       View(all.data(), kEntry * cpu_transport_->size(), DType::u8)));
  for (const RankSignature& other : all) {
    if (other.signature.hash() != signature.hash()) throw MismatchError(describe_mismatch(all));
  }
  if (call.operation != Operation::all_to_all_v) return;
  if (const auto mismatch = compare_counts(*cpu_transport_, call).mismatch) {
    throw MismatchError(*mismatch);
  }
}

template <class Launch>
void NcclTransport::with_operator(const char* name, const Reduce& reduce, DType dtype,
                                  const Launch& launch) {
  if (reduce.kind != ReduceKind::premul_sum) {
    comm_->call(name,
                [&](ncclComm_t comm) { return launch(operator_of(reduce.kind, dtype), comm); });
    return;
  }
  ncclRedOp_t scaled = ncclSum;
  auto scalar = scalar_of(dtype, reduce.factor);
  comm_->call("ncclRedOpCreatePreMulSum", [&](ncclComm_t comm) {
    return nccl().RedOpCreatePreMulSum(&scaled, scalar.data(), type_of(dtype),
                                       ncclScalarHostImmediate, comm);
  });
  comm_->call(name, [&](ncclComm_t comm) { return launch(scaled, comm); });
  // The operation was launched: NCCL remembers the operator as long as it needs it.
  comm_->call("ncclRedOpDestroy",
              [&](ncclComm_t comm) { return nccl().RedOpDestroy(scaled, comm); });
}

void NcclTransport::all_reduce(const Call& call) {
  if (call.count == 0) return;
  with_operator("ncclAllReduce", call.reduction, call.dtype, [&](ncclRedOp_t op, ncclComm_t comm) {
    return nccl().AllReduce(call.in.data, call.out.data, size(call.count), type_of(call.dtype), op,
                            comm, stream_);
  });
}

void NcclTransport::reduce(const Call& call) {
  if (call.count == 0) return;
  void* result = cpu_transport_->rank() == call.root ? call.out.data : nullptr;
  with_operator("ncclReduce", call.reduction, call.dtype, [&](ncclRedOp_t op, ncclComm_t comm) {
    return nccl().Reduce(call.in.data, result, size(call.count), type_of(call.dtype), op, call.root,
                         comm, stream_);
  });
}

void NcclTransport::broadcast(const Call& call) {
  if (call.count == 0) return;
  // Elsewhere not read.
  const void* source = cpu_transport_->rank() == call.root ? call.in.data : call.out.data;
  comm_->call("ncclBroadcast", [&](ncclComm_t comm) {
    return nccl().Broadcast(source, call.out.data, size(call.count), type_of(call.dtype), call.root,
                            comm, stream_);
  });
}

void NcclTransport::all_gather(const Call& call) {
  if (call.count == 0) return;
  comm_->call("ncclAllGather", [&](ncclComm_t comm) {
    return nccl().AllGather(call.in.data, call.out.data, size(call.count), type_of(call.dtype),
                            comm, stream_);
  });
}

// NCCL has no all-gather with counts: every rank broadcasts its part, in one group.
void NcclTransport::all_gather_v(const Call& call) {
  if (call.count == 0) return;
  comm_->group("ncclBroadcast in a group", [&](ncclComm_t comm) {
    std::int64_t begin = 0;
    for (int root = 0; root < cpu_transport_->size(); ++root) {
      const std::int64_t count = call.counts[static_cast<std::size_t>(root)];
      const View part = call.out.part(begin, count);
      begin += count;
      if (count == 0) continue;
      const void* source = cpu_transport_->rank() == root ? call.in.data : part.data;
      const ncclResult_t result = nccl().Broadcast(source, part.data, size(count),
                                                   type_of(call.dtype), root, comm, stream_);
      if (is_failure(result)) return result;
    }
    return ncclSuccess;
  });
}

void NcclTransport::reduce_scatter(const Call& call) {
  if (call.count == 0) return;
  with_operator("ncclReduceScatter", call.reduction, call.dtype,
                [&](ncclRedOp_t op, ncclComm_t comm) {
                  return nccl().ReduceScatter(call.in.data, call.out.data, size(call.count),
                                              type_of(call.dtype), op, comm, stream_);
                });
}

void NcclTransport::exchange_blocks(const Call& call) {
  const Blocks blocks(call, cpu_transport_->rank(), cpu_transport_->size());
  const auto is_empty = [](const ConstView& block) { return block.count == 0; };
  if (std::all_of(blocks.to.begin(), blocks.to.end(), is_empty) &&
      std::all_of(blocks.from.begin(), blocks.from.end(), is_empty)) {
    return;
  }
  comm_->group("ncclSend and ncclRecv in a group", [&](ncclComm_t comm) {
    for (int peer = 0; peer < cpu_transport_->size(); ++peer) {
      const ConstView to = blocks.to[static_cast<std::size_t>(peer)];
      const View from = blocks.from[static_cast<std::size_t>(peer)];
      if (peer == cpu_transport_->rank() && to.data == from.data)
        continue;  // its own block, in place
      if (to.count > 0) {
        const ncclResult_t sent =
            nccl().Send(to.data, size(to.count), type_of(call.dtype), peer, comm, stream_);
        if (is_failure(sent)) return sent;
      }
      if (from.count > 0) {
        const ncclResult_t received =
            nccl().Recv(from.data, size(from.count), type_of(call.dtype), peer, comm, stream_);
        if (is_failure(received)) return received;
      }
    }
    return ncclSuccess;
  });
}

// NCCL has no reduce-scatter with counts: each part is reduced to its rank, in one group.
void NcclTransport::reduce_scatter_v(const Call& call) {
  if (call.count == 0) return;
  with_operator("ncclReduce in a group", call.reduction, call.dtype,
                [&](ncclRedOp_t op, ncclComm_t comm) {
                  return comm_->in_group([&] { return reduce_parts(call, op, comm); });
                });
}

ncclResult_t NcclTransport::reduce_parts(const Call& call, ncclRedOp_t op, ncclComm_t comm) {
  std::int64_t begin = 0;
  for (int root = 0; root < cpu_transport_->size(); ++root) {
    const std::int64_t count = call.counts[static_cast<std::size_t>(root)];
    const ConstView part = call.in.part(begin, count);
    begin += count;
    if (count == 0) continue;
    void* const result = cpu_transport_->rank() == root ? call.out.data : nullptr;
    const ncclResult_t reduced =
        nccl().Reduce(part.data, result, size(count), type_of(call.dtype), op, root, comm, stream_);
    if (is_failure(reduced)) return reduced;
  }
  return ncclSuccess;
}

void NcclTransport::barrier() {
  if (scratch_.data() == nullptr) scratch_ = allocate(size_of(DType::i32));
  comm_->call("ncclAllReduce", [&](ncclComm_t comm) {
    return nccl().AllReduce(scratch_.data(), scratch_.data(), 1, ncclInt32, ncclSum, comm, stream_);
  });
}

ncclResult_t NcclTransport::launch(const Message& message, ncclComm_t comm) {
  const ConstView view = message.view();
  if (message.receives && message.received != nullptr) *message.received = {message.peer, 0};
  if (view.count == 0) return ncclSuccess;
  return message.receives ? nccl().Recv(message.out.data, size(view.count), type_of(view.dtype),
                                        message.peer, comm, stream_)
                          : nccl().Send(view.data, size(view.count), type_of(view.dtype),
                                        message.peer, comm, stream_);
}

void NcclTransport::send(const Call& call) {
  const Message message = Message::send(call.in, call.peer);
  exchange(std::span(&message, 1));
}

void NcclTransport::recv(const Call& call) {
  const Message message = Message::recv(call.out, call.peer, 0, call.received);
  exchange(std::span(&message, 1));
}

// In a group even if there is one alone: NCCL before 2.25 answers "success" to a lone message of a
// communicator that does not block (NCCL_COMM_BLOCKING=0) before it has launched it.
void NcclTransport::exchange(std::span<const Message> messages) {
  comm_->group("ncclSend and ncclRecv in a group", [&](ncclComm_t comm) {
    for (const Message& message : messages) {
      const ncclResult_t result = launch(message, comm);
      if (is_failure(result)) return result;
    }
    return ncclSuccess;
  });
}

Buffer NcclTransport::allocate(std::int64_t bytes) {
  agree(Call::allocate(bytes));
  if (bytes == 0) return {nullptr, 0, nullptr, device_};
  void* data = nullptr;
  const ncclResult_t result = nccl().MemAlloc(&data, size(bytes));
  std::shared_ptr<void> memory;
  if (result == ncclSuccess) {
    memory.reset(data, [comm = comm_](void* block) { comm->release(block); });
  }
  // All ranks have memory, or none.
  std::int32_t ok = memory ? 1 : 0;
  const View vote(&ok, 1, DType::i32);
  cpu_transport_->run(Call::all_reduce(vote, vote, Reduce::min));
  if (ok == 0) {
    throw SystemError(memory ? "another rank could not allocate memory of its GPU"
                             : "ncclMemAlloc of " + std::to_string(bytes) +
                                   " bytes: " + nccl().GetErrorString(result),
                      ENOMEM);
  }
  // Released in this order: the registration, then the memory.
  void* registration = comm_->enroll(data, size(bytes));
  const std::shared_ptr<void> owner(data, [comm = comm_, memory, registration](void*) mutable {
    comm->dismiss(registration);
    memory.reset();
  });
  return {data, bytes, owner, device_};
}

std::unique_ptr<DeviceTransport> NcclTransport::split(int color, int key,
                                                      Transport* cpu_transport) {
  std::shared_ptr<Comm> part = comm_->split(color, key, cpu_transport);
  if (!part) return nullptr;
  return std::make_unique<NcclTransport>(std::move(part), cpu_transport, device_, to_compare_);
}

}  // namespace tutti::nccl
