// The ranks meet over the CPU's transport, and NCCL's id travels over it.
#include "comm/nccl/connect.hpp"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "comm/nccl/join.hpp"
#include "comm/nccl/transport.hpp"
#include "device/cuda.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

/** What a rank tells the others before NCCL is asked for anything. */
struct RankInfo {
  std::int32_t version = 0;  // of NCCL; 0 where it is missing
  std::int32_t process = 0;
  cuda::Uuid gpu{};
  std::int64_t compared = 0;        // how many calls; they would not meet if that differed
  std::array<char, 200> problem{};  // of the GPU; as much of the text as fits
};

template <class T>
View bytes_of(T* objects, std::int64_t count) {
  return {objects, count * static_cast<std::int64_t>(sizeof(T)), DType::u8};
}

std::vector<RankInfo> exchange(Transport& cpu_transport, RankInfo own) {
  std::vector<RankInfo> ranks(static_cast<std::size_t>(cpu_transport.size()));
  cpu_transport.run(
      Call::all_gather(bytes_of(&own, 1), bytes_of(ranks.data(), cpu_transport.size())));
  return ranks;
}

void check_versions(const std::vector<RankInfo>& ranks, int own, const std::string& problem) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].version != 0) continue;
    if (!problem.empty()) throw BackendUnavailable(problem);
    throw BackendUnavailable("rank " + std::to_string(rank) + " has no NCCL that can be used");
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].version == own) continue;
    throw BackendUnavailable("this rank has NCCL " + version_text(own) + ", but rank " +
                             std::to_string(rank) + " has " + version_text(ranks[rank].version));
  }
}

void check_gpus(const std::vector<RankInfo>& ranks, const std::string& problem) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].problem.front() == '\0') continue;
    if (!problem.empty()) throw BackendUnavailable(problem);
    throw BackendUnavailable("rank " + std::to_string(rank) +
                             " cannot use its GPU: " + ranks[rank].problem.data());
  }
}

void check_comparison(const std::vector<RankInfo>& ranks, std::int64_t own) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].compared == own) continue;
    throw InvalidArgument(
        "TUTTI_GPU_CHECK must be the same on all ranks, but is another one on rank " +
        std::to_string(rank) + " than on this rank");
  }
}

/** Whether ranks share a GPU. Throws BackendUnavailable if threads of one process do. */
bool any_shared(const std::vector<RankInfo>& ranks) {
  bool shared = false;
  for (std::size_t b = 1; b < ranks.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (ranks[a].gpu != ranks[b].gpu) continue;
      if (ranks[a].process == ranks[b].process) {
        throw BackendUnavailable("ranks " + std::to_string(a) + " and " + std::to_string(b) +
                                 " are threads of one process and share a GPU, which NCCL "
                                 "cannot do: make them processes");
      }
      shared = true;
    }
  }
  return shared;
}

/**
 * NCCL refuses two ranks on one GPU where their host and their GPU are the same; with a host id of
 * its own, each rank seems to be on another host. They talk over sockets then. NCCL reads this
 * once in a process. What the user has set stays.
 */
void pretend_own_host(const Transport& cpu_transport) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 0);
  };
  set("NCCL_HOSTID",
      "tutti-" + std::to_string(::getpid()) + "-" + std::to_string(cpu_transport.rank()));
  set("NCCL_NET", "Socket");
  set("NCCL_IB_DISABLE", "1");
  set("NCCL_P2P_DISABLE", "1");
  set("NCCL_SHM_DISABLE", "1");
  set("NCCL_NVLS_ENABLE", "0");
  set("NCCL_CUMEM_ENABLE", "0");
  if (cpu_transport.local_size() == cpu_transport.size()) set("NCCL_SOCKET_IFNAME", "lo");
}

/**
 * Between GPUs of one process NCCL would reach into the arguments of the other ranks, which memory
 * of a stream-ordered pool, as tutti's is, does not allow. Collective.
 */
void keep_to_own_arguments(Transport& cpu_transport, const std::vector<RankInfo>& ranks) {
  // How many ranks before this one, and after it, are threads of its process.
  int before = 0;
  int after = 0;
  std::set<std::int32_t> processes;
  for (int rank = 0; rank < cpu_transport.size(); ++rank) {
    const std::int32_t process = ranks[static_cast<std::size_t>(rank)].process;
    processes.insert(process);
    if (process != ::getpid() || rank == cpu_transport.rank()) continue;
    ++(rank < cpu_transport.rank() ? before : after);
  }
  if (processes.size() == ranks.size()) return;
  // Threads must not change the environment at once, nor read it meanwhile.
  if (before == 0 && after > 0) ::setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);
  cpu_transport.run(Call::barrier());
}

/** Rank 0 makes the id, all get it. */
ncclUniqueId share_id(Transport& cpu_transport, const Library& library) {
  struct Ticket {
    std::int32_t result = 0;
    ncclUniqueId id{};
  } ticket;
  if (cpu_transport.rank() == 0) ticket.result = library.GetUniqueId(&ticket.id);
  cpu_transport.run(Call::broadcast(bytes_of(&ticket, 1), bytes_of(&ticket, 1), 0));
  if (ticket.result != ncclSuccess) {
    throw BackendUnavailable(std::string("ncclGetUniqueId on rank 0: ") +
                             library.GetErrorString(static_cast<ncclResult_t>(ticket.result)));
  }
  return ticket.id;
}

}  // namespace

std::shared_ptr<Comm> join(Transport* cpu_transport, const OwnGpu& gpu) {
  std::shared_ptr<const Library> library;
  std::string problem;
  try {
    library = Library::open();
  } catch (const BackendUnavailable& error) {
    problem = error.what();
  }
  RankInfo own{.version = library ? library->version : 0,
               .process = ::getpid(),
               .gpu = gpu.uuid,
               .compared = gpu.compared};
  gpu.problem.copy(own.problem.data(), own.problem.size() - 1);
  const std::vector<RankInfo> ranks = exchange(*cpu_transport, own);
  check_versions(ranks, own.version, problem);
  check_gpus(ranks, gpu.problem);
  check_comparison(ranks, gpu.compared);
  if (any_shared(ranks)) {
    if (cpu_transport->rank() == 0) {
      log(LogLevel::warn, "several ranks share a GPU: this works, but it is slow");
    }
    pretend_own_host(*cpu_transport);
  }
  keep_to_own_arguments(*cpu_transport, ranks);
  const ncclUniqueId id = share_id(*cpu_transport, *library);
  return std::make_shared<Comm>(std::move(library), cpu_transport, id, gpu.on_gpu);
}

std::unique_ptr<DeviceTransport> connect(Transport* cpu_transport, Device device) {
  OwnGpu gpu;
  gpu.on_gpu = [device](const std::function<void()>& action) {
    cuda::with_device(device.ordinal, action);
  };
  try {
    cuda::prepare(device.ordinal);
    gpu.uuid = cuda::uuid_of(device.ordinal);
  } catch (const Error& error) {  // which all ranks learn
    gpu.problem = error.what();
  }
  auto transport = std::make_unique<NcclTransport>(join(cpu_transport, gpu), cpu_transport, device);
  if (cpu_transport->rank() == 0) log(LogLevel::info, transport->describe());
  return transport;
}

}  // namespace tutti::nccl
