// libnccl, opened at run time.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

namespace tutti::nccl {

/** The functions of libnccl that are used here, under their names without `nccl`. */
struct Library {
  /** The oldest version in which ncclCommAbort inside of a group frees nothing before its end. */
  static constexpr int kOldest = NCCL_VERSION(2, 22, 3);

  /**
   * Opens TUTTI_NCCL_LIB, or else libnccl.so.2: the copy that the process has loaded already, if
   * there is one. Stays open for ever, since NCCL has threads of its own. Throws
   * BackendUnavailable, naming what is missing.
   */
  static std::shared_ptr<const Library> open();

  std::string path;  ///< of the file
  int version = 0;   ///< as NCCL_VERSION makes it

  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommSplit) CommSplit = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclCommRegister) CommRegister = nullptr;
  decltype(&ncclCommDeregister) CommDeregister = nullptr;
  decltype(&ncclMemAlloc) MemAlloc = nullptr;
  decltype(&ncclMemFree) MemFree = nullptr;
  decltype(&ncclRedOpCreatePreMulSum) RedOpCreatePreMulSum = nullptr;
  decltype(&ncclRedOpDestroy) RedOpDestroy = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclAllReduce) AllReduce = nullptr;
  decltype(&ncclReduce) Reduce = nullptr;
  decltype(&ncclBroadcast) Broadcast = nullptr;
  decltype(&ncclAllGather) AllGather = nullptr;
  decltype(&ncclReduceScatter) ReduceScatter = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
};

/** "2.28.9". */
std::string version_text(int version);

}  // namespace tutti::nccl
