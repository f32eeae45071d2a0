// The end of communicators of NCCL, which may wait for other ranks for ever.
#include "comm/nccl/endings.hpp"

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/log.hpp"

namespace tutti::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLimit{2000};  // for all ends of a process
constexpr milliseconds kTell{1000};   // for ncclCommAbort to say that work must end, which is quick
constexpr milliseconds kNap{1};

void check(const Handle& handle, const char* call, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  log(LogLevel::warn, std::string(call) + ": " + handle.library->GetErrorString(result));
}

/** Whether a thread has come to a point. */
class Signal {
 public:
  void give() {
    {
      const std::lock_guard lock(mutex_);
      given_ = true;
    }
    changed_.notify_all();
  }
  void wait(milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return given_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool given_ = false;
};

/** Gives back what the communicator's memory was. */
void give_back(Handle& handle) {
  std::vector<void*> memory;
  {
    const std::lock_guard lock(handle.mutex);
    handle.ended = true;
    memory.swap(handle.memory_left);
  }
  for (void* block : memory) check(handle, "ncclMemFree", handle.library->MemFree(block));
}

void destroy_now(Handle& handle) {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(handle.mutex);
    comm = std::exchange(handle.comm, nullptr);
  }
  check(handle, "ncclCommDestroy", handle.library->CommDestroy(comm));
}

/** Begins a group, which ends the communicators. */
void tell_to_end(Handle& handle, Signal& told) {
  check(handle, "ncclGroupStart", handle.library->GroupStart());
  std::set<ncclComm_t> aborted;
  const auto tell = [&] {
    for (ncclComm_t* each : {&handle.comm, &handle.part}) {
      ncclComm_t comm = now(*each);
      if (comm == nullptr || !aborted.insert(comm).second) continue;
      check(handle, "ncclCommAbort", handle.library->CommAbort(comm));
    }
  };
  tell();
  told.give();
  // A call under way may yet show what it makes; it returns, now that it has been told.
  for (std::unique_lock call(handle.mutex, std::defer_lock);; std::this_thread::sleep_for(kNap)) {
    const bool returned = call.try_lock();
    tell();
    if (!returned) continue;
    handle.comm = handle.part = nullptr;
    return;
  }
}

}  // namespace

Endings& Endings::of_process() {
  static auto* const endings = new Endings;  // its threads may outlive everything
  return *endings;
}

void Endings::begin() {
  const std::lock_guard lock(mutex_);
  ++alive_;
}

void Endings::leave() {
  std::unique_lock lock(mutex_);
  if (--alive_ > 0) return;
  if (changed_.wait_for(lock, kLimit, [&] { return under_way_ == 0; })) return;
  log(LogLevel::warn, std::to_string(under_way_) +
                          " communicators of NCCL do not end, since they wait for other ranks or "
                          "other work of the GPU: they are left alone");
}

template <class Work>
void Endings::start(const Work& work) {
  const std::lock_guard lock(mutex_);
  std::thread([this, work] {
    try {
      work();
    } catch (const std::exception& error) {
      log(LogLevel::warn, error.what());
    }
    {
      const std::lock_guard end(mutex_);
      --under_way_;
    }
    changed_.notify_all();
  }).detach();
  ++under_way_;
}

void Endings::destroy(std::shared_ptr<Handle> handle) {
  start([handle = std::move(handle)] {
    handle->on_gpu([&] {
      destroy_now(*handle);
      give_back(*handle);
    });
  });
}

void Endings::abort(std::shared_ptr<Handle> handle) {
  const auto told = std::make_shared<Signal>();
  start([handle = std::move(handle), told] {
    // Before anything of CUDA's, which may be waiting for the very work that is to end.
    tell_to_end(*handle, *told);
    handle->on_gpu([&] {
      check(*handle, "ncclGroupEnd", handle->library->GroupEnd());
      give_back(*handle);
    });
  });
  told->wait(kTell);
}

}  // namespace tutti::nccl
