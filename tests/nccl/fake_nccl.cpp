// The functions of libnccl that tutti uses.
#include "nccl/fake_nccl.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

// The names are NCCL's.
// NOLINTBEGIN(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)

struct ncclComm {
  int rank = 0;
  int size = 1;
  bool blocking = true;
  std::string id;
  int left = 0;  // times that it still says "in progress"
  std::atomic<bool> told_to_end = false;
  std::vector<std::function<void()>> later;  // what it does before it says that it is done
  std::vector<FakeNccl::Ended> work;
};

namespace {

using std::chrono::milliseconds;

constexpr int kNoRank = -1;
constexpr milliseconds kInVain{8000};  // longer than anybody should wait for an end

/** What the calls of a thread between ncclGroupStart and ncclGroupEnd have left to the latter. */
struct Group {
  int depth = 0;
  std::vector<std::function<void()>> jobs;
  ncclComm* unfinished = nullptr;  // one that does not block
};
thread_local Group group;

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

/** Whether done() comes to hold. */
template <class Done>
bool wait(milliseconds limit, const Done& done) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

/** The same for a call that may take its time. */
ncclResult_t answer(ncclComm* comm, const std::string& function, const std::string& arguments) {
  const ncclResult_t result = answer(comm->rank, function, arguments);
  if (result != ncclInProgress) return result;
  const int patience = fake_nccl()->patience;
  if (!comm->blocking) {
    comm->left = patience;
    return result;
  }
  const bool told = wait(patience < 0 ? kInVain : milliseconds(patience),
                         [&] { return comm->told_to_end.load(); });
  return told ? ncclInternalError : ncclSuccess;
}

void put_on_stream(ncclComm* comm, cudaStream_t stream) {
  FakeNccl& fake = *fake_nccl();
  const auto ended = std::make_shared<std::atomic<bool>>(!fake.waits_for_peers);
  {
    const std::lock_guard lock(fake.mutex);
    if (comm->told_to_end) *ended = true;
    comm->work.push_back(ended);
  }
  if (fake.enqueue) fake.enqueue(comm->rank, stream, ended);
}

/** Runs `job` now, or at the end of the group. */
void now_or_at_end(std::function<void()> job) {
  if (group.depth > 0) {
    group.jobs.push_back(std::move(job));
  } else {
    job();
  }
}

/** An operation. One of a communicator that does not block is on its stream when that says so. */
ncclResult_t operation(ncclComm* comm, const std::string& function, const std::string& arguments,
                       cudaStream_t stream) {
  const ncclResult_t result = answer(comm, function, arguments);
  if (result != ncclSuccess && result != ncclInProgress) return result;
  const bool message = function == "ncclSend" || function == "ncclRecv";
  const bool lone = group.depth == 0;
  const auto enqueue = [comm, stream] { put_on_stream(comm, stream); };
  if (comm->blocking) {
    now_or_at_end(enqueue);
    return result;
  }
  comm->later.push_back(enqueue);
  if (!lone) group.unfinished = comm;
  // Before 2.25, what a lone message left to a thread of its own was not told.
  if (lone && message && fake_nccl()->version < 22501) return ncclSuccess;
  return ncclInProgress;
}

/** A rank has come to the end of a communicator. */
void come_to_end(const ncclComm* comm) {
  FakeNccl& fake = *fake_nccl();
  const std::lock_guard lock(fake.mutex);
  fake.ended_ranks[comm->id].insert(comm->rank);
}

void use_gpu() {
  if (const auto& use = fake_nccl()->use_gpu) use();
}

void finish_later(ncclComm* comm) {
  for (const auto& job : std::exchange(comm->later, {})) job();
}

bool is_blocking(const ncclConfig_t* config) {
  const char* const forced = std::getenv("NCCL_COMM_BLOCKING");
  return forced == nullptr ? config->blocking != 0 : std::strcmp(forced, "0") != 0;
}

}  // namespace

extern "C" {

FakeNccl* fake_nccl() {
  static auto* const the_fake = new FakeNccl;  // threads that are left alone may still call it
  return the_fake;
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
  FakeNccl& fake = *fake_nccl();
  std::string name = "the id";
  {
    const std::lock_guard lock(fake.mutex);
    if (fake.ids++ > 0) name += " " + std::to_string(fake.ids);
  }
  std::strcpy(id->internal, name.c_str());
  return answer(kNoRank, "ncclGetUniqueId");
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  use_gpu();
  auto* made = new ncclComm;
  made->rank = rank;
  made->size = size;
  made->blocking = is_blocking(config);
  made->id = id.internal;
  ++fake_nccl()->alive;
  std::atomic_ref(*comm).store(made);  // before it is ready, so that it can be aborted
  return answer(made, "ncclCommInitRankConfig",
                text("size", size, "id", id.internal, "blocking", config->blocking));
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  const ncclResult_t result =
      answer(comm, "ncclCommSplit", text("color", color, "key", key, "blocking", config->blocking));
  if (result != ncclSuccess) return result;
  std::atomic_ref(*part).store(nullptr);
  const auto make = [=] {
    if (color == NCCL_SPLIT_NOCOLOR) return;
    auto* made = new ncclComm;
    made->rank = key;
    made->blocking = is_blocking(config);
    made->id = comm->id + "/" + std::to_string(color);
    ++fake_nccl()->alive;
    std::atomic_ref(*part).store(made);
  };
  if (comm->blocking) {
    make();
    return ncclSuccess;
  }
  // It says "success" at once, and writes the part when it is asked how far it is.
  comm->later.emplace_back(make);
  comm->left = fake_nccl()->patience;
  return result;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm->left > 0) --comm->left;
  *state = comm->left != 0 ? ncclInProgress : fake_nccl()->async;
  if (comm->left == 0) finish_later(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return answer(comm, "ncclCommFinalize", ""); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  FakeNccl& fake = *fake_nccl();
  use_gpu();
  const ncclResult_t result = answer(comm, "ncclCommDestroy", "");
  come_to_end(comm);
  const auto all_have_come = [&] {
    const std::lock_guard lock(fake.mutex);
    return fake.ended_ranks[comm->id].size() == static_cast<std::size_t>(comm->size);
  };
  if (fake.destroy_waits && !wait(kInVain, all_have_come)) ++fake.stuck;
  delete comm;
  --fake.alive;
  return result;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  FakeNccl& fake = *fake_nccl();
  const ncclResult_t result = answer(comm->rank, "ncclCommAbort");
  {
    const std::lock_guard lock(fake.mutex);
    comm->told_to_end = true;
    for (const FakeNccl::Ended& ended : comm->work) *ended = true;
  }
  come_to_end(comm);
  // What follows is done at the end of the group: the communicator is not to be used after that.
  now_or_at_end([comm] {
    use_gpu();
    if (!wait(kInVain, [] { return !fake_nccl()->abort_blocks; })) ++fake_nccl()->stuck;
    delete comm;
    --fake_nccl()->alive;
  });
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
  use_gpu();
  const ncclResult_t result = answer(kNoRank, "ncclMemAlloc", text(bytes));
  if (const auto& has_memory = fake_nccl()->has_memory; has_memory && !has_memory()) {
    return ncclUnhandledCudaError;
  }
  if (result == ncclSuccess) *data = std::malloc(bytes);
  return result;
}
ncclResult_t ncclMemFree(void* data) {
  use_gpu();
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
ncclResult_t ncclGroupStart() {
  ++group.depth;
  return answer(kNoRank, "ncclGroupStart");
}
ncclResult_t ncclGroupEnd() {
  const ncclResult_t result = answer(kNoRank, "ncclGroupEnd");
  if (--group.depth > 0) return result;
  for (const auto& job : std::exchange(group.jobs, {})) job();
  ncclComm* const unfinished = std::exchange(group.unfinished, nullptr);
  return result == ncclSuccess && unfinished != nullptr ? ncclInProgress : result;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return operation(comm, "ncclAllReduce",
                   text(in, out, count, "type", static_cast<int>(type), "op", static_cast<int>(op),
                        "stream", static_cast<void*>(stream)),
                   stream);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return operation(comm, "ncclReduce",
                   text(in, out != nullptr, count, "type", static_cast<int>(type), "op",
                        static_cast<int>(op), "root", root),
                   stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return operation(comm, "ncclBroadcast",
                   text(in, out, count, "type", static_cast<int>(type), "root", root), stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return operation(comm, "ncclAllGather", text(in, out, count, "type", static_cast<int>(type)),
                   stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return operation(comm, "ncclReduceScatter",
                   text(in, out, count, "type", static_cast<int>(type), "op", static_cast<int>(op)),
                   stream);
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return operation(comm, "ncclSend", text(in, count, "type", static_cast<int>(type), "to", peer),
                   stream);
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return operation(comm, "ncclRecv", text(out, count, "type", static_cast<int>(type), "from", peer),
                   stream);
}

}  // extern "C"

// NOLINTEND(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
