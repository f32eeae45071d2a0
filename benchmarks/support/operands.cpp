// Takes memory, and makes the calls of tutti.
#include "support/operands.hpp"

#include <algorithm>
#include <cstddef>

namespace tutti::bench {

std::int64_t rounded_bytes(Op op, DType dtype, std::int64_t bytes, int ranks) {
  if (op == Op::barrier) return 0;
  const bool has_blocks = op == Op::all_gather || op == Op::reduce_scatter || op == Op::all_to_all;
  const std::int64_t grain = size_of(dtype) * (has_blocks ? ranks : 1);
  return (bytes + grain - 1) / grain * grain;
}

Operands::Operands(Communicator& comm, Buffers buffers, Op op, std::int64_t bytes) {
  bytes = std::max<std::int64_t>(bytes, 1);  // of a barrier, which has none
  for (std::size_t i = 0; i < (is_in_place(op) ? 1U : 2U); ++i) {
    if (buffers == Buffers::arena) {
      symmetric_[i] = comm.allocate(bytes);
    } else {
      own_[i] = std::make_unique<HugeMemory>(bytes);
    }
    data_[i] = own_[i] ? own_[i]->data() : symmetric_[i].data();
  }
  if (is_in_place(op)) data_[1] = data_[0];
}

Call Operands::call(Op op, DType dtype, std::int64_t bytes, int ranks) const {
  const std::int64_t whole = bytes / size_of(dtype);
  const std::int64_t part = whole / ranks;
  return {op, View(data_[0], op == Op::all_gather ? part : whole, dtype),
          View(data_[1], op == Op::reduce_scatter ? part : whole, dtype)};
}

std::function<void()> way_of_tutti(Communicator& comm, const Call& call) {
  switch (call.op) {
    case Op::all_reduce:
      return [&comm, call] { comm.all_reduce(call.in, call.out); };
    case Op::broadcast:
      return [&comm, call] { comm.broadcast(call.out, 0); };
    case Op::broadcast_round:
      return [&comm, call] {
        for (int root = 0; root < comm.world_size(); ++root) comm.broadcast(call.out, root);
      };
    case Op::all_gather:
      return [&comm, call] { comm.all_gather(call.in, call.out); };
    case Op::reduce_scatter:
      return [&comm, call] { comm.reduce_scatter(call.in, call.out); };
    case Op::reduce:
      return [&comm, call] { comm.reduce(call.in, call.out, 0); };
    case Op::barrier:
      return [&comm] { comm.barrier(); };
    case Op::all_to_all:
      break;
  }
  return [&comm, call] { comm.all_to_all(call.in, call.out); };
}

}  // namespace tutti::bench
