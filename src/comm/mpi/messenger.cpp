// Posts control messages, and takes them.
#include "comm/mpi/messenger.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/log.hpp"
#include "comm/mpi/lifecycle.hpp"

namespace tutti::mpi {

MpiMessenger::~MpiMessenger() {
  try {
    if (session_.this_thread_may_call()) flush();
    if (!outgoing_.empty()) leave_to_mpi(std::make_shared<Pendings>(std::move(outgoing_)));
    if (!incoming_.empty()) leave_to_mpi(std::make_shared<Pendings>(std::move(incoming_)));
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void MpiMessenger::send(const ControlMessage& message, int destination) {
  if (session_.has_ended(destination)) return;
  const auto bytes = std::make_shared<RecycledVector<std::byte>>(packed(message));
  Pending pending{MPI_REQUEST_NULL, bytes, destination};
  const int code = MPI_Isend(bytes->data(), static_cast<int>(bytes->size()), MPI_BYTE, destination,
                             tag_, session_.comm(), &pending.request);
  if (code == MPI_SUCCESS) outgoing_.push_back(std::move(pending));
}

void MpiMessenger::flush() noexcept {
  std::erase_if(outgoing_, [](Pending& pending) {
    int done = 0;
    return MPI_Test(&pending.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
}

bool MpiMessenger::is_sending(const std::function<bool(int)>& is_meant) const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [&](const Pending& pending) { return is_meant(pending.peer); });
}

void MpiMessenger::receive(
    const std::function<void(const ControlMessage& message, int source)>& handle) {
  collect();
  for (auto pending = incoming_.begin(); pending != incoming_.end();) {
    const auto next = std::next(pending);
    if (is_done(*pending)) {
      if (const auto message = unpacked(*pending->bytes)) handle(*message, pending->peer);
      incoming_.erase(pending);
    }
    pending = next;
  }
}

void MpiMessenger::collect() {
  for (;;) {
    int found = 0;
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, tag_, session_.comm(), &found, &matched, &status),
          "MPI_Improbe");
    if (found == 0) return;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    Pending& pending = incoming_.emplace_back();
    pending.bytes = std::make_shared<RecycledVector<std::byte>>(static_cast<std::size_t>(bytes));
    pending.peer = status.MPI_SOURCE;
    check(MPI_Imrecv(pending.bytes->data(), bytes, MPI_BYTE, &matched, &pending.request),
          "MPI_Imrecv");
  }
}

bool MpiMessenger::is_done(Pending& pending) {
  int done = 0;
  check(MPI_Test(&pending.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace tutti::mpi
