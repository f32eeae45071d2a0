// Finds libnccl and its functions.
#include "comm/nccl/library.hpp"

#include <dlfcn.h>

#include "base/environment.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

std::string last_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown error" : text;
}

/** The file that a function was loaded from; `name` if the linker does not tell. */
std::string file_of(const void* function, const std::string& name) {
  Dl_info info{};
  if (::dladdr(function, &info) == 0 || info.dli_fname == nullptr) return name;
  return info.dli_fname;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::shared_ptr<const Library> Library::open() {
  const std::string name = environment("TUTTI_NCCL_LIB").value_or("libnccl.so.2");
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) throw BackendUnavailable("NCCL cannot be loaded: " + last_error());

  auto library = std::make_shared<Library>();
  const auto load = [&](auto& function, const char* symbol) {
    void* found = ::dlsym(handle, symbol);
    if (found == nullptr) {
      throw BackendUnavailable(library->path + " has no function " + symbol);
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  library->path = name;
  load(library->GetVersion, "ncclGetVersion");
  library->path = file_of(reinterpret_cast<const void*>(library->GetVersion), name);
  if (library->GetVersion(&library->version) != ncclSuccess || library->version < kOldest) {
    throw BackendUnavailable(library->path + " is NCCL " + version_text(library->version) +
                             ", but must be at least " + version_text(kOldest));
  }
  load(library->GetUniqueId, "ncclGetUniqueId");
  load(library->GetErrorString, "ncclGetErrorString");
  load(library->GetLastError, "ncclGetLastError");
  load(library->CommInitRankConfig, "ncclCommInitRankConfig");
  load(library->CommSplit, "ncclCommSplit");
  load(library->CommGetAsyncError, "ncclCommGetAsyncError");
  load(library->CommDestroy, "ncclCommDestroy");
  load(library->CommAbort, "ncclCommAbort");
  load(library->CommRegister, "ncclCommRegister");
  load(library->CommDeregister, "ncclCommDeregister");
  load(library->MemAlloc, "ncclMemAlloc");
  load(library->MemFree, "ncclMemFree");
  load(library->RedOpCreatePreMulSum, "ncclRedOpCreatePreMulSum");
  load(library->RedOpDestroy, "ncclRedOpDestroy");
  load(library->GroupStart, "ncclGroupStart");
  load(library->GroupEnd, "ncclGroupEnd");
  load(library->AllReduce, "ncclAllReduce");
  load(library->Reduce, "ncclReduce");
  load(library->Broadcast, "ncclBroadcast");
  load(library->AllGather, "ncclAllGather");
  load(library->ReduceScatter, "ncclReduceScatter");
  load(library->Send, "ncclSend");
  load(library->Recv, "ncclRecv");
  return library;
}

}  // namespace tutti::nccl
