// Waits for NCCL, and tells whose fault an error is.
#include "comm/nccl/comm.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "comm/nccl/endings.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

using std::chrono::milliseconds;

constexpr WaitPolicy kPolicy{.spin = milliseconds(2), .nap = milliseconds(1)};

constexpr milliseconds kPulse{50};    // between two looks at the other ranks
constexpr milliseconds kGrace{2000};  // after an error: until the loss behind it is known

ncclConfig_t make_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  return config;
}

/** For what must not throw: at the end of a process CUDA and threads may be gone. */
template <class Action>
void quietly(const Action& action) noexcept {
  try {
    action();
  } catch (const std::exception& error) {
    log(LogLevel::info, error.what());
  }
}

}  // namespace

Comm::Comm(std::shared_ptr<const Library> library, Transport* cpu_transport, const ncclUniqueId& id,
           OnGpu on_gpu)
    : handle_(std::make_shared<Handle>()),
      cpu_transport_(cpu_transport),
      watchdog_(make_watchdog()) {
  handle_->library = std::move(library);
  handle_->on_gpu = std::move(on_gpu);
  Endings::of_process().begin();
  try {
    call_apart("ncclCommInitRankConfig",
               [id, size = cpu_transport->size(), rank = cpu_transport->rank()](Handle& handle) {
                 ncclConfig_t config = make_config();
                 return handle.library->CommInitRankConfig(&handle.comm, size, id, rank, &config);
               });
  } catch (...) {
    cancel();
    Endings::of_process().leave();
    throw;
  }
}

Comm::Comm(std::shared_ptr<Handle> handle, Transport* cpu_transport)
    : handle_(std::move(handle)), cpu_transport_(cpu_transport), watchdog_(make_watchdog()) {
  Endings::of_process().begin();
}

Comm::~Comm() {
  if (process_ != ::getpid()) {
    static_cast<void>(watchdog_.release());  // its thread is not in the child
    return;
  }
  watchdog_.reset();
  quietly([&] {
    Endings& endings = Endings::of_process();
    if (!handle_->aborted) endings.destroy(handle_);
    endings.leave();
  });
}

void Comm::require_alive() const {
  if (!handle_->aborted) return;
  const std::lock_guard lock(lost_mutex_);
  if (lost_) std::rethrow_exception(lost_);
  throw CommunicationError("NCCL was aborted after an earlier failure");
}

void Comm::pause(Waiter& waiter) {
  waiter.pause();
  if (waiter.due(kPulse)) cpu_transport_->pulse(waiter.waited());
}

std::unique_ptr<Watchdog> Comm::make_watchdog() {
  return std::make_unique<Watchdog>([this](milliseconds waited) { look_after_others(waited); });
}

void Comm::look_after_others(milliseconds waited) noexcept {
  if (handle_->aborted) return;
  try {
    cpu_transport_->pulse(waited);
  } catch (...) {
    {
      const std::lock_guard lock(lost_mutex_);
      lost_ = std::current_exception();
    }
    cancel();  // the call under way returns
  }
}

template <class Call>
void Comm::call_apart(const char* name, const Call& call) {
  struct State {
    std::atomic<bool> done = false;
    ncclResult_t result = ncclSuccess;
    std::exception_ptr error;
  };
  const auto state = std::make_shared<State>();
  require_alive();
  std::thread([handle = handle_, state, call] {
    try {
      handle->on_gpu([&] {
        const std::lock_guard lock(handle->mutex);
        // What begins after the abort nobody would end.
        state->result = handle->aborted ? ncclInternalError : call(*handle);
      });
    } catch (...) {
      state->error = std::current_exception();
    }
    state->done = true;
  }).detach();
  for (Waiter waiter(kPolicy); !state->done; pause(waiter)) require_alive();
  if (state->error) std::rethrow_exception(state->error);
  const std::lock_guard lock(handle_->mutex);
  finish(name, state->result);
}

ncclResult_t Comm::looked_after(const std::function<ncclResult_t()>& call) {
  if (cpu_transport_->any_thread()) {
    const Watchdog::Guard guard(*watchdog_);
    return call();
  }
  auto result = std::async(std::launch::async, [&] {
    ncclResult_t returned = ncclSuccess;
    handle_->on_gpu([&] { returned = call(); });
    return returned;
  });
  try {
    for (Waiter waiter(kPolicy); result.wait_for(milliseconds(0)) != std::future_status::ready;) {
      pause(waiter);
    }
  } catch (...) {
    cancel();
    result.wait();  // it uses what is the caller's
    throw;
  }
  return result.get();
}

void Comm::finish(const char* name, ncclResult_t result) {
  // NCCL_COMM_BLOCKING=0 has every communicator answer before it has done what it was asked for.
  for (Waiter waiter(kPolicy); result == ncclInProgress && !handle_->aborted;) {
    const ncclResult_t asked = library().CommGetAsyncError(handle_->comm, &result);
    if (asked != ncclSuccess) result = asked;
    if (result == ncclInProgress) pause(waiter);
  }
  require_alive();
  if (result != ncclSuccess) fail(name, result);
}

void Comm::fail(const char* name, ncclResult_t result) {
  std::string text = std::string(name) + ": " + library().GetErrorString(result);
  const char* details = library().GetLastError(handle_->comm);
  if (details != nullptr && *details != '\0') text += std::string(" (") + details + ")";
  // A rank that dies breaks its connections; that it died shows a little later.
  const bool may_be_a_loss = result == ncclRemoteError || result == ncclSystemError;
  for (Waiter waiter(kPolicy, kGrace); may_be_a_loss && !handle_->aborted && !waiter.expired();) {
    pause(waiter);
  }
  throw Error(text);
}

std::unique_ptr<Comm> Comm::split(int color, int key, Transport* cpu_transport) {
  call_apart("ncclCommSplit", [color, key](Handle& handle) {
    ncclConfig_t config = make_config();
    return handle.library->CommSplit(handle.comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                                     &handle.part, &config);
  });
  const auto part = std::make_shared<Handle>();
  part->library = handle_->library;
  part->on_gpu = handle_->on_gpu;
  {
    const std::lock_guard lock(handle_->mutex);
    require_alive();
    part->comm = std::atomic_ref(handle_->part).exchange(nullptr);
    if (handle_->aborted) {  // who aborts may have seen it, and ends it: it does not change hands
      std::atomic_ref(handle_->part).store(part->comm);
      require_alive();
    }
  }
  if (part->comm == nullptr) return nullptr;
  return std::unique_ptr<Comm>(new Comm(part, cpu_transport));
}

void Comm::poll() {
  require_alive();
  const std::unique_lock lock(handle_->mutex, std::try_to_lock);
  if (!lock) return;
  require_alive();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = library().CommGetAsyncError(handle_->comm, &state);
  if (asked != ncclSuccess) state = asked;
  if (is_failure(state)) fail("a collective on GPUs", state);
}

void Comm::cancel() noexcept {
  if (process_ != ::getpid() || handle_->aborted.exchange(true)) return;
  try {
    Endings::of_process().abort(handle_);
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string("NCCL is not aborted, so its work may go on: ") + error.what());
  }
}

void Comm::release(void* data) noexcept {
  if (process_ != ::getpid()) return;
  if (handle_->aborted) {  // the GPU may still be about to see that
    const std::lock_guard lock(handle_->mutex);
    if (!handle_->ended) return handle_->memory_left.push_back(data);
  }
  quietly([&] {
    handle_->on_gpu([&] {
      const ncclResult_t result = library().MemFree(data);
      if (result == ncclSuccess) return;
      log(LogLevel::warn, std::string("ncclMemFree: ") + library().GetErrorString(result));
    });
  });
}

void* Comm::enroll(void* data, std::size_t bytes) {
  void* registration = nullptr;
  try {
    call("ncclCommRegister",
         [&](ncclComm_t comm) { return library().CommRegister(comm, data, bytes, &registration); });
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& error) {
    log(LogLevel::info, error.what());
    return nullptr;
  }
  return registration;
}

void Comm::dismiss(void* registration) noexcept {
  if (process_ != ::getpid() || registration == nullptr || handle_->aborted) return;
  quietly([&] {
    handle_->on_gpu([&] {
      const std::lock_guard lock(handle_->mutex);
      if (handle_->comm == nullptr) return;
      const ncclResult_t result = library().CommDeregister(handle_->comm, registration);
      if (!is_failure(result)) return;
      log(LogLevel::warn, std::string_view(library().GetErrorString(result)));
    });
  });
}

}  // namespace tutti::nccl
