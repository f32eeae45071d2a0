// MPI's collectives.
#include <mpi.h>

#include <cstdint>
#include <limits>

#include "peers/peer.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {
namespace {

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i8:
      return MPI_INT8_T;
    case DType::i16:
      return MPI_INT16_T;
    case DType::u16:
      return MPI_UINT16_T;
    case DType::u32:
      return MPI_UINT32_T;
    case DType::u64:
      return MPI_UINT64_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

class MpiPeer final : public Peer {
 public:
  std::vector<std::function<void()>> ways(const Call& call) override {
    MPI_Datatype type = type_of(call.in.dtype);
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    if (type == MPI_DATATYPE_NULL || call.in.count > kMost || call.out.count > kMost) return {};
    const void* in = call.in.data;
    void* out = call.out.data;
    const auto ins = static_cast<int>(call.in.count);
    const auto outs = static_cast<int>(call.out.count);
    switch (call.op) {
      case Op::all_reduce:
        return {[=] { MPI_Allreduce(MPI_IN_PLACE, out, outs, type, MPI_SUM, MPI_COMM_WORLD); }};
      case Op::broadcast:
        return {[=] { MPI_Bcast(out, outs, type, 0, MPI_COMM_WORLD); }};
      case Op::all_gather:
        return {[=] { MPI_Allgather(in, ins, type, out, ins, type, MPI_COMM_WORLD); }};
      case Op::reduce_scatter:
        return {[=] { MPI_Reduce_scatter_block(in, out, outs, type, MPI_SUM, MPI_COMM_WORLD); }};
      case Op::all_to_all:
        break;
    }
    int ranks = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int block = ins / ranks;
    return {[=] { MPI_Alltoall(in, block, type, out, block, type, MPI_COMM_WORLD); }};
  }
};

}  // namespace

std::unique_ptr<Peer> make_mpi_peer() { return std::make_unique<MpiPeer>(); }

std::unique_ptr<Peer> make_peer(const std::string& name) {
  if (name == "mpi") return make_mpi_peer();
  if (name == "gloo") return make_gloo_peer();
  throw InvalidArgument("--peers has '" + name + "', but takes mpi and gloo");
}

}  // namespace tutti::bench
