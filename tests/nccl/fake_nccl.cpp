// The functions of libnccl that tutti uses.
#include "nccl/fake_nccl.hpp"

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

// The names are NCCL's.
// NOLINTBEGIN(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)

struct ncclComm {
  int rank = 0;
  int size = 1;
  int left = 0;                  // times that it still says "in progress"
  ncclComm** part_to = nullptr;  // of a split under way: where its part goes
  ncclComm* part = nullptr;
  ncclUniqueId id{};
};

namespace {

constexpr int kNoRank = -1;

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  ((stream << ' ' << parts), ...);
  return stream.str();
}

/** Records a call and gives the answer that the test has prepared. */
ncclResult_t answer(int rank, const std::string& function, const std::string& arguments = "") {
  FakeNccl& fake = *fake_nccl();
  const std::lock_guard lock(fake.mutex);
  fake.calls.push_back(std::to_string(rank) + ": " + function + arguments);
  const auto prepared = fake.answers.find(function);
  if (prepared == fake.answers.end()) return ncclSuccess;
  for (const int key : {rank, kNoRank}) {
    if (const auto found = prepared->second.find(key); found != prepared->second.end()) {
      return found->second;
    }
  }
  return ncclSuccess;
}

ncclResult_t answer(ncclComm* comm, const std::string& function, const std::string& arguments) {
  const ncclResult_t result = answer(comm->rank, function, arguments);
  if (result == ncclInProgress) comm->left = fake_nccl()->patience;
  return result;
}

}  // namespace

extern "C" {

FakeNccl* fake_nccl() {
  static FakeNccl the_fake;
  return &the_fake;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = fake_nccl()->version;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote error" : "some error";
}
const char* ncclGetLastError(ncclComm_t) { return "details"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::strcpy(id->internal, "the id");
  return answer(kNoRank, "ncclGetUniqueId");
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = new ncclComm{.rank = rank, .size = size, .id = id};
  return answer(*comm, "ncclCommInitRankConfig",
                text("size", size, "id", id.internal, "blocking", config->blocking));
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  const ncclResult_t result =
      answer(comm, "ncclCommSplit", text("color", color, "key", key, "blocking", config->blocking));
  if (result != ncclSuccess) return result;
  // As NCCL does: it says "success" at once, and writes the part when it is asked how far it is.
  *part = nullptr;
  comm->part_to = part;
  if (color != NCCL_SPLIT_NOCOLOR) comm->part = new ncclComm{.rank = key, .id = comm->id};
  comm->left = fake_nccl()->patience;
  return result;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm->left > 0) --comm->left;
  *state = comm->left != 0 ? ncclInProgress : fake_nccl()->async;
  if (comm->left == 0 && comm->part_to != nullptr) {
    *std::exchange(comm->part_to, nullptr) = std::exchange(comm->part, nullptr);
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return answer(comm, "ncclCommFinalize", ""); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const ncclResult_t result = answer(comm, "ncclCommDestroy", "");
  delete comm;
  return result;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const ncclResult_t result = answer(comm, "ncclCommAbort", "");
  delete comm;
  return result;
}
ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t bytes, void** registration) {
  *registration = data;
  return answer(comm, "ncclCommRegister", text(bytes));
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void*) {
  return answer(comm, "ncclCommDeregister", "");
}
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  const ncclResult_t result = answer(kNoRank, "ncclMemAlloc", text(bytes));
  if (result == ncclSuccess) *data = std::malloc(bytes);
  return result;
}
ncclResult_t ncclMemFree(void* data) {
  std::free(data);
  return answer(kNoRank, "ncclMemFree");
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  *op = static_cast<ncclRedOp_t>(100);
  float factor = 0;
  std::memcpy(&factor, scalar, sizeof factor);
  return answer(
      comm, "ncclRedOpCreatePreMulSum",
      text(factor, "type", static_cast<int>(type), "residence", static_cast<int>(residence)));
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return answer(comm, "ncclRedOpDestroy", text(static_cast<int>(op)));
}
ncclResult_t ncclGroupStart() { return answer(kNoRank, "ncclGroupStart"); }
ncclResult_t ncclGroupEnd() { return answer(kNoRank, "ncclGroupEnd"); }

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return answer(comm, "ncclAllReduce",
                text(in, out, count, "type", static_cast<int>(type), "op", static_cast<int>(op),
                     "stream", static_cast<void*>(stream)));
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t) {
  return answer(comm, "ncclReduce",
                text(in, out != nullptr, count, "type", static_cast<int>(type), "op",
                     static_cast<int>(op), "root", root));
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t) {
  return answer(comm, "ncclBroadcast",
                text(in, out, count, "type", static_cast<int>(type), "root", root));
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t) {
  return answer(comm, "ncclAllGather", text(in, out, count, "type", static_cast<int>(type)));
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  return answer(comm, "ncclReduceScatter",
                text(in, out, count, "type", static_cast<int>(type), "op", static_cast<int>(op)));
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return answer(comm, "ncclSend", text(in, count, "type", static_cast<int>(type), "to", peer));
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return answer(comm, "ncclRecv", text(out, count, "type", static_cast<int>(type), "from", peer));
}

}  // extern "C"

// NOLINTEND(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
