// Posts a channel's messages, tests them, and looks after the ranks that a wait for them is for.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/recycled.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/lifecycle.hpp"

namespace tutti::mpi {
namespace {

// MPI takes messages that nobody has received yet, as many as it has memory for. Over a slow wire
// they would be under way for longer than a deadline, and what comes behind them: so of so many
// bytes, the last message is sent in a way that ends when its receiver takes it.
constexpr std::int64_t kMostUnconfirmed = 256 << 10;
// A root sends its notes, and waits for nobody: what MPI needs for each is more than its bytes.
constexpr std::int64_t kLeastNote = 2 << 10;

Wire::Posted posted_of(MPI_Request request) {
  return request == MPI_REQUEST_NULL ? Wire::kEnded : std::bit_cast<Wire::Posted>(request);
}

MPI_Request request_of(Wire::Posted posted) {
  return posted == Wire::kEnded ? MPI_REQUEST_NULL : std::bit_cast<MPI_Request>(posted);
}

}  // namespace

/** Whether the next `bytes` bytes to `destination` are to be waited for until it takes them. */
bool Channel::is_to_be_confirmed(std::int64_t bytes, int destination) {
  auto& unconfirmed = unconfirmed_[static_cast<std::size_t>(destination)];
  if (unconfirmed.fetch_add(bytes, std::memory_order_relaxed) + bytes < kMostUnconfirmed) {
    return false;
  }
  unconfirmed.store(0, std::memory_order_relaxed);
  return true;
}

Wire::Posted Channel::post_send(const std::byte* data, std::int64_t bytes, int destination,
                                Traffic traffic) {
  if (side_of(traffic) == Side::collective) bytes_sent_ += bytes;
  const int session_rank = members_[static_cast<std::size_t>(destination)];
  const std::int64_t counted = traffic == Traffic::note ? std::max(bytes, kLeastNote) : bytes;
  // Who is asked may never look.
  const bool confirms = traffic != Traffic::question && is_to_be_confirmed(counted, destination);
  const auto send = confirms ? &MPI_Issend : &MPI_Isend;
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = send(data, static_cast<int>(bytes), MPI_BYTE, session_rank, tag(traffic),
                        session_->comm(), &request);
  if (code != MPI_SUCCESS)
    watch_.lose({destination}, "MPI cannot reach it: " + describe_error(code));
  return posted_of(request);
}

Wire::Posted Channel::post_receive(std::byte* data, std::int64_t bytes, int source,
                                   Traffic traffic) {
  const int session_rank = members_[static_cast<std::size_t>(source)];
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, session_rank, tag(traffic),
                             session_->comm(), &request);
  if (code != MPI_SUCCESS) watch_.lose({source}, "MPI cannot reach it: " + describe_error(code));
  return posted_of(request);
}

std::optional<int> Channel::take(std::byte* data, std::int64_t bytes, Traffic traffic) {
  int found = 0;
  MPI_Message matched = MPI_MESSAGE_NULL;
  MPI_Status status;
  check(MPI_Improbe(MPI_ANY_SOURCE, tag(traffic), session_->comm(), &found, &matched, &status),
        "MPI_Improbe");
  if (found == 0) return std::nullopt;
  // All of it is here.
  check(MPI_Mrecv(data, static_cast<int>(bytes), MPI_BYTE, &matched, MPI_STATUS_IGNORE),
        "MPI_Mrecv");
  watch_.progressed();
  return watch_.rank_of(status.MPI_SOURCE);
}

bool Channel::progress(std::span<Posted> posted, std::span<const int> peers) {
  constexpr std::size_t kAtOnce = 32;
  std::array<MPI_Request, kAtOnce> requests;
  std::array<int, kAtOnce> done;
  std::array<MPI_Status, kAtOnce> statuses;
  std::vector<int> failed;
  std::string error;
  bool moved = false;
  for (std::size_t begin = 0; begin < posted.size(); begin += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, posted.size() - begin);
    const std::span<Posted> some = posted.subspan(begin, count);
    std::transform(some.begin(), some.end(), requests.begin(), request_of);
    int found = 0;
    int code = MPI_SUCCESS;
    // MPI looks at the messages before it moves bytes: what those were for the next look finds.
    for (int looks = 0; looks < 2 && found == 0 && code == MPI_SUCCESS; ++looks) {
      code = MPI_Testsome(static_cast<int>(count), requests.data(), &found, done.data(),
                          statuses.data());
    }
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (found == MPI_UNDEFINED || found == 0) continue;
    moved = true;
    for (std::size_t i = 0; i < static_cast<std::size_t>(found); ++i) {
      const auto at = static_cast<std::size_t>(done[i]);
      some[at] = kEnded;
      if (code != MPI_ERR_IN_STATUS || statuses[i].MPI_ERROR == MPI_SUCCESS) continue;
      failed.push_back(peers[begin + at]);
      error = describe_error(statuses[i].MPI_ERROR);
    }
  }
  if (!failed.empty()) watch_.lose(failed, "a message failed: " + error);
  if (!moved) return false;
  watch_.progressed();
  return true;
}

bool Channel::pause(Clock::duration still) {
  if (still < kMpiWait.spin) {
    kMpiWait.between();
    return OwnWaits::of_this_process().are_quiet();
  }
  std::this_thread::sleep_for(kMpiWait.nap);
  return true;
}

void Channel::withdraw(Posted receive) {
  MPI_Request request = request_of(receive);
  check(MPI_Cancel(&request), "MPI_Cancel");
  check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");  // at once: no message has matched it
}

void Channel::abandon(std::span<Posted> receives, std::size_t sends,
                      std::span<const std::shared_ptr<const void>> kept) noexcept {
  std::size_t left = sends + receives.size();
  if (session_->may_call()) {
    for (const Posted receive : receives) {
      // A send cannot be cancelled, nor a receive whose message has begun to arrive.
      MPI_Request request = request_of(receive);
      int done = 0;
      if (MPI_Cancel(&request) == MPI_SUCCESS) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) --left;
    }
  }
  // Nobody is lost after a mismatch: if nothing is under way, MPI can be finalised.
  if (left > 0 || !watch_.has_found_mismatch()) fail();
  for (const auto& memory : kept) leave_to_mpi(memory);
}

}  // namespace tutti::mpi
