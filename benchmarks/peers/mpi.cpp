// MPI's collectives.
#include <mpi.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <utility>

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

/** `call` over `comm`; nothing if MPI has no such type or counts. */
std::function<void()> way_over(MPI_Comm comm, const Call& call) {
  MPI_Datatype type = type_of(call.in.dtype);
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (type == MPI_DATATYPE_NULL || call.in.count > kMost || call.out.count > kMost) return {};
  const void* in = call.in.data;
  void* out = call.out.data;
  const auto ins = static_cast<int>(call.in.count);
  const auto outs = static_cast<int>(call.out.count);
  int ranks = 0;
  MPI_Comm_size(comm, &ranks);
  switch (call.op) {
    case Op::all_reduce:
      return [=] { MPI_Allreduce(MPI_IN_PLACE, out, outs, type, MPI_SUM, comm); };
    case Op::broadcast:
      return [=] { MPI_Bcast(out, outs, type, 0, comm); };
    case Op::broadcast_round:
      return [=] {
        for (int root = 0; root < ranks; ++root) MPI_Bcast(out, outs, type, root, comm);
      };
    case Op::all_gather:
      return [=] { MPI_Allgather(in, ins, type, out, ins, type, comm); };
    case Op::reduce_scatter:
      return [=] { MPI_Reduce_scatter_block(in, out, outs, type, MPI_SUM, comm); };
    case Op::reduce:
      return [=] { MPI_Reduce(in, out, outs, type, MPI_SUM, 0, comm); };
    case Op::barrier:
      return [=] { MPI_Barrier(comm); };
    case Op::all_to_all:
      break;
  }
  const int block = ins / ranks;
  return [=] { MPI_Alltoall(in, block, type, out, block, type, comm); };
}

class MpiPeer final : public Peer {
 public:
  std::vector<Way> ways(const Call& call) override {
    auto run = way_over(MPI_COMM_WORLD, call);
    if (!run) return {};
    return {{"default", std::move(run)}};
  }
};

/** A setting of Open MPI's that can be written while MPI runs. */
class Setting {
 public:
  explicit Setting(const std::string& name) {
    int provided = 0;
    int index = 0;
    int count = 0;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return;
    exists_ = MPI_T_cvar_get_index(name.c_str(), &index) == MPI_SUCCESS &&
              MPI_T_cvar_handle_alloc(index, nullptr, &handle_, &count) == MPI_SUCCESS;
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() {
    if (exists_) MPI_T_cvar_handle_free(&handle_);
    MPI_T_finalize();
  }
  bool set(int value) const { return exists_ && MPI_T_cvar_write(handle_, &value) == MPI_SUCCESS; }

 private:
  bool exists_ = false;
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
};

/** A duplicate of MPI_COMM_WORLD for one way. */
class Duplicate {
 public:
  explicit Duplicate(MPI_Info info = MPI_INFO_NULL) {
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm_);
  }
  Duplicate(const Duplicate&) = delete;
  Duplicate& operator=(const Duplicate&) = delete;
  ~Duplicate() { MPI_Comm_free(&comm_); }
  MPI_Comm comm() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/** An algorithm that the component tuned can be told to take. */
struct Tuned {
  Op op;
  const char* algorithm;
  const char* setting;  ///< of the algorithm; that of its segments is longer
  int number;
  int segment;  ///< in bytes; 0: the algorithm does not cut, or as it likes
};
constexpr int kSegment = 64 << 10;
constexpr std::array<Tuned, 6> kTuned{
    {{Op::all_reduce, "ring", "coll_tuned_allreduce_algorithm", 4, 0},
     {Op::all_gather, "ring", "coll_tuned_allgather_algorithm", 4, 0},
     {Op::broadcast, "pipeline", "coll_tuned_bcast_algorithm", 3, kSegment},
     {Op::broadcast_round, "pipeline", "coll_tuned_bcast_algorithm", 3, kSegment},
     {Op::reduce, "pipeline", "coll_tuned_reduce_algorithm", 3, kSegment},
     {Op::barrier, "double_ring", "coll_tuned_barrier_algorithm", 2, 0}}};

class OpenMpiPeer final : public Peer {
 public:
  OpenMpiPeer() {
    tunes_ = true;
    for (const Tuned& each : kTuned) tunes_ = write(each, each.number, each.segment) && tunes_;
    tuned_.emplace();  // a communicator takes the settings at its birth
    for (const Tuned& each : kTuned) write(each, 0, 0);
    MPI_Comm host = MPI_COMM_NULL;
    int ranks = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &ranks);
    MPI_Comm_free(&host);
    MPI_Allreduce(&ranks, &most_ranks_, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Info info = MPI_INFO_NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "ompi_comm_coll_preference", "han");
    han_.emplace(info);
    MPI_Info_free(&info);
  }

  std::vector<Way> ways(const Call& call) override {
    std::vector<Way> ways = MpiPeer().ways(call);
    if (ways.empty()) return {};
    for (const Tuned& each : kTuned) {
      if (tunes_ && each.op == call.op)
        ways.push_back({each.algorithm, way_over(tuned_->comm(), call)});
    }
    // Where ranks share a host, han of Open MPI 4.1 takes MPI_IN_PLACE for the address of the
    // second segment and those after it, and crashes.
    const bool crashes = call.op == Op::all_reduce && call.bytes() > kSegment && most_ranks_ > 1;
    if (!crashes) ways.push_back({"han", way_over(han_->comm(), call)});
    return ways;
  }

 private:
  static bool write(const Tuned& each, int number, int segment) {
    const std::string name = each.setting;
    return (each.segment == 0 || Setting(name + "_segmentsize").set(segment)) &&
           Setting(name).set(number);
  }

  bool tunes_ = false;
  int most_ranks_ = 1;  // of a host
  std::optional<Duplicate> tuned_;
  std::optional<Duplicate> han_;
};

}  // namespace

std::unique_ptr<Peer> make_mpi_peer() { return std::make_unique<MpiPeer>(); }

void prepare_open_mpi() { ::setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 1); }

std::unique_ptr<Peer> make_open_mpi_peer() { return std::make_unique<OpenMpiPeer>(); }

std::unique_ptr<Peer> make_peer(const std::string& name) {
  if (name == "mpi") return make_mpi_peer();
  if (name == "openmpi") return make_open_mpi_peer();
  if (name == "gloo") return make_gloo_peer();
  if (name == "floor") return make_floor_peer();
  throw InvalidArgument("--peers has '" + name + "', but takes mpi, openmpi, gloo and floor");
}

}  // namespace tutti::bench
