// MPI's collectives.
#include <mpi.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  Op op;  ///< a broadcast for rounds of them, too
  std::string_view algorithm;
  int number;
  int segment;  ///< in bytes; 0: the algorithm does not cut, or as it likes
};
constexpr int kSegment = 64 << 10;
constexpr int kShort = 8 << 10;
constexpr std::string_view kTwo = "two_proc";  // for two ranks alone
constexpr std::array<Tuned, 5> kFew{{{Op::all_reduce, "ring", 4, 0},
                                     {Op::all_gather, "ring", 4, 0},
                                     {Op::broadcast, "pipeline", 3, kSegment},
                                     {Op::reduce, "pipeline", 3, kSegment},
                                     {Op::barrier, "double_ring", 2, 0}}};
/** Those that few leaves out. */
constexpr std::array<Tuned, 34> kMore{{{Op::all_reduce, "linear", 1, 0},
                                       {Op::all_reduce, "nonoverlapping", 2, 0},
                                       {Op::all_reduce, "recursive_doubling", 3, 0},
                                       {Op::all_reduce, "segmented_ring", 5, kSegment},
                                       {Op::all_reduce, "rabenseifner", 6, 0},
                                       {Op::all_gather, "linear", 1, 0},
                                       {Op::all_gather, "bruck", 2, 0},
                                       {Op::all_gather, "recursive_doubling", 3, 0},
                                       {Op::all_gather, "neighbor", 5, 0},
                                       {Op::all_gather, kTwo, 6, 0},
                                       {Op::broadcast, "linear", 1, 0},
                                       {Op::broadcast, "chain", 2, kSegment},
                                       {Op::broadcast, "chain_8K", 2, kShort},
                                       {Op::broadcast, "pipeline_8K", 3, kShort},
                                       {Op::broadcast, "split_binary", 4, kSegment},
                                       {Op::broadcast, "split_binary_8K", 4, kShort},
                                       {Op::broadcast, "binary", 5, kSegment},
                                       {Op::broadcast, "binary_8K", 5, kShort},
                                       {Op::broadcast, "binomial", 6, kSegment},
                                       {Op::broadcast, "knomial", 7, kSegment},
                                       {Op::broadcast, "scatter_allgather", 8, 0},
                                       {Op::broadcast, "scatter_allgather_ring", 9, 0},
                                       {Op::reduce, "linear", 1, 0},
                                       {Op::reduce, "chain", 2, kSegment},
                                       {Op::reduce, "pipeline_8K", 3, kShort},
                                       {Op::reduce, "binary", 4, kSegment},
                                       {Op::reduce, "binomial", 5, kSegment},
                                       {Op::reduce, "in_order_binary", 6, kSegment},
                                       {Op::reduce, "rabenseifner", 7, 0},
                                       {Op::barrier, "linear", 1, 0},
                                       {Op::barrier, "recursive_doubling", 3, 0},
                                       {Op::barrier, "bruck", 4, 0},
                                       {Op::barrier, kTwo, 5, 0},
                                       {Op::barrier, "tree", 6, 0}}};

/** Of the component tuned; those that cut have one more, which is longer. */
std::string setting_of(Op op) {
  const std::string name = op == Op::all_reduce   ? "allreduce"
                           : op == Op::all_gather ? "allgather"
                           : op == Op::broadcast  ? "bcast"
                                                  : name_of(op);
  return "coll_tuned_" + name + "_algorithm";
}

bool write(const Tuned& tuned, int number, int segment) {
  const std::string name = setting_of(tuned.op);
  return (tuned.segment == 0 || Setting(name + "_segmentsize").set(segment)) &&
         Setting(name).set(number);
}

class OpenMpiPeer final : public Peer {
 public:
  explicit OpenMpiPeer(Algorithms algorithms) {
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    for (const Tuned& each : kFew) tell(each);
    for (const Tuned& each : kMore) {
      if (algorithms == Algorithms::all) tell(each);
    }
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
    const Op op = call.op == Op::broadcast_round ? Op::broadcast : call.op;
    for (const Told& each : told_) {
      if (each.op != op) continue;
      ways.push_back({each.algorithm, way_over(each.duplicate->comm(), call)});
    }
    // Where ranks share a host, han of Open MPI 4.1 takes MPI_IN_PLACE for the address of the
    // second segment and those after it, and crashes.
    const bool crashes = call.op == Op::all_reduce && call.bytes() > kSegment && most_ranks_ > 1;
    if (!crashes) ways.push_back({"han", way_over(han_->comm(), call)});
    return ways;
  }

 private:
  struct Told {
    Op op;
    std::string algorithm;
    std::unique_ptr<Duplicate> duplicate;
  };

  /** Makes a communicator that is told so: it takes the settings at its birth. */
  void tell(const Tuned& tuned) {
    if (tuned.algorithm == kTwo && ranks_ != 2) return;
    if (write(tuned, tuned.number, tuned.segment)) {
      told_.push_back({tuned.op, std::string(tuned.algorithm), std::make_unique<Duplicate>()});
    }
    write(tuned, 0, 0);
  }

  int ranks_ = 1;
  int most_ranks_ = 1;  // of a host
  std::vector<Told> told_;
  std::optional<Duplicate> han_;
};

}  // namespace

std::unique_ptr<Peer> make_mpi_peer() { return std::make_unique<MpiPeer>(); }

void prepare_open_mpi() { ::setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 1); }

std::unique_ptr<Peer> make_open_mpi_peer(Algorithms algorithms) {
  return std::make_unique<OpenMpiPeer>(algorithms);
}

std::unique_ptr<Peer> make_peer(const std::string& name) {
  if (name == "mpi") return make_mpi_peer();
  if (name == "openmpi") return make_open_mpi_peer(Algorithms::few);
  if (name == "openmpi-all") return make_open_mpi_peer(Algorithms::all);
  if (name == "gloo") return make_gloo_peer();
  if (name == "floor") return make_floor_peer();
  throw InvalidArgument("--peers has '" + name +
                        "', but takes mpi, openmpi, openmpi-all, gloo and floor");
}

}  // namespace tutti::bench
