// MPI_Allreduce.
#include <mpi.h>

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
    default:
      return MPI_DATATYPE_NULL;
  }
}

class MpiPeer final : public Peer {
 public:
  std::vector<std::function<void()>> all_reduce(View data) override {
    MPI_Datatype type = type_of(data.dtype);
    if (type == MPI_DATATYPE_NULL || data.count > std::numeric_limits<int>::max()) return {};
    return {[=] {
      MPI_Allreduce(MPI_IN_PLACE, data.data, static_cast<int>(data.count), type, MPI_SUM,
                    MPI_COMM_WORLD);
    }};
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
