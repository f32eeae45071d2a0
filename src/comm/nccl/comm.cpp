// Waits for NCCL, and tells whose fault an error is.
#include "comm/nccl/comm.hpp"

#include <utility>

#include "base/log.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

using std::chrono::milliseconds;

// NCCL, told not to block, launches each operation from a thread of its own: a sleep would take
// longer than most of them.
constexpr WaitPolicy kPolicy{.spin = milliseconds(2), .nap = milliseconds(1)};
constexpr WaitPolicy kAtTheEnd{
    .spin = milliseconds(2), .nap = milliseconds(1), .interruptible = false};

constexpr milliseconds kPulse{50};    // between two looks at the other ranks
constexpr milliseconds kGrace{2000};  // after an error: until the loss behind it is known
constexpr milliseconds kLeave{5000};  // for a communicator to end in order

}  // namespace

ncclConfig_t make_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

Comm::Comm(std::shared_ptr<const Library> library, Transport* cpu_transport, const ncclUniqueId& id)
    : library_(std::move(library)), cpu_transport_(cpu_transport) {
  ncclConfig_t config = make_config();
  const ncclResult_t result = library_->CommInitRankConfig(&comm_, cpu_transport->size(), id,
                                                           cpu_transport->rank(), &config);
  try {
    finish("ncclCommInitRankConfig", comm_, result);
  } catch (...) {
    cancel();
    throw;
  }
}

Comm::~Comm() {
  if (comm_ == nullptr || aborted_ || process_ != ::getpid()) return;
  if (ends_in_order()) {
    const ncclResult_t result = library_->CommDestroy(comm_);
    if (result == ncclSuccess || result == ncclInProgress) return;
    log(LogLevel::warn, std::string("ncclCommDestroy: ") + library_->GetErrorString(result));
    return;
  }
  log(LogLevel::warn, "NCCL did not end in order; aborting it");
  cancel();
}

bool Comm::ends_in_order() noexcept {
  try {
    ncclResult_t result = library_->CommFinalize(comm_);
    for (Waiter waiter(kAtTheEnd, kLeave); result == ncclInProgress && !waiter.expired();
         waiter.pause()) {
      if (library_->CommGetAsyncError(comm_, &result) != ncclSuccess) return false;
    }
    return result == ncclSuccess;
  } catch (const std::exception&) {
    return false;
  }
}

void Comm::require_alive() const {
  if (aborted_) throw CommunicationError("NCCL was aborted after an earlier failure");
}

void Comm::pause(Waiter& waiter) {
  waiter.pause();
  if (waiter.due(kPulse)) cpu_transport_->pulse(waiter.waited());
}

void Comm::finish(const char* name, ncclComm_t comm, ncclResult_t result) {
  for (Waiter waiter(kPolicy); result == ncclInProgress && !aborted_;) {
    const ncclResult_t asked = library_->CommGetAsyncError(comm, &result);
    if (asked != ncclSuccess) result = asked;
    if (result == ncclInProgress) pause(waiter);
  }
  require_alive();
  if (result != ncclSuccess) fail(name, comm, result);
}

void Comm::fail(const char* name, ncclComm_t comm, ncclResult_t result) {
  std::string text = std::string(name) + ": " + library_->GetErrorString(result);
  const char* details = library_->GetLastError(comm);
  if (details != nullptr && *details != '\0') text += std::string(" (") + details + ")";
  // A rank that dies breaks its connections; that it died shows a little later.
  const bool may_be_a_loss = result == ncclRemoteError || result == ncclSystemError;
  for (Waiter waiter(kPolicy, kGrace); may_be_a_loss && !aborted_ && !waiter.expired();) {
    pause(waiter);
  }
  throw Error(text);
}

std::unique_ptr<Comm> Comm::split(int color, int key, Transport* cpu_transport) {
  ncclComm_t part = nullptr;
  {
    const std::lock_guard lock(mutex_);
    require_alive();
    ncclConfig_t config = make_config();
    const ncclResult_t result =
        library_->CommSplit(comm_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part_, &config);
    // A thread of NCCL's writes the part, while this answers "success" all the same.
    finish("ncclCommSplit", comm_, is_failure(result) ? result : ncclInProgress);
    part = std::exchange(part_, nullptr);
  }
  if (part == nullptr) return nullptr;
  std::unique_ptr<Comm> result(new Comm(library_, cpu_transport, part));
  result->call("ncclCommSplit", [](ncclComm_t) { return ncclInProgress; });  // until it is ready
  return result;
}

void Comm::poll() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  require_alive();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = library_->CommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) fail("a collective on GPUs", comm_, state);
}

void Comm::cancel() noexcept {
  aborted_ = true;  // a call in progress gives up and lets go of the mutex
  const std::lock_guard lock(mutex_);
  for (ncclComm_t* each : {&comm_, &part_}) {
    ncclComm_t comm = std::exchange(*each, nullptr);
    if (comm == nullptr) continue;
    const ncclResult_t result = library_->CommAbort(comm);
    if (!is_failure(result)) continue;
    log(LogLevel::warn, std::string_view(library_->GetErrorString(result)));
  }
}

void Comm::release(void* data) noexcept {
  if (process_ != ::getpid()) return;
  const ncclResult_t result = library_->MemFree(data);
  if (result == ncclSuccess) return;
  log(LogLevel::warn, std::string("ncclMemFree: ") + library_->GetErrorString(result));
}

void* Comm::enroll(void* data, std::size_t bytes) {
  void* registration = nullptr;
  try {
    call("ncclCommRegister",
         [&](ncclComm_t comm) { return library_->CommRegister(comm, data, bytes, &registration); });
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& error) {
    log(LogLevel::info, error.what());
    return nullptr;
  }
  return registration;
}

void Comm::dismiss(void* registration) noexcept {
  if (process_ != ::getpid()) return;
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr || registration == nullptr) return;
  const ncclResult_t result = library_->CommDeregister(comm_, registration);
  if (result == ncclSuccess || result == ncclInProgress) return;
  log(LogLevel::warn, std::string_view(library_->GetErrorString(result)));
}

}  // namespace tutti::nccl
