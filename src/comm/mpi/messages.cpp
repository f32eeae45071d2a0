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
#include "base/thread.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/lifecycle.hpp"

namespace tutti::mpi {
namespace {

// MPI takes messages that nobody has received yet, as many as it has memory for. Over a slow wire
// they would be under way for longer than a deadline, and what comes behind them: so of so many
// bytes, the last message is sent in a way that ends when its receiver takes it.
constexpr std::int64_t kMostUnconfirmed = Streams::kMostUnconfirmed;
// Who sends notes waits for nobody: what MPI needs for each is more than its bytes.
constexpr std::int64_t kLeastNote = 2 << 10;

Wire::Posted posted_of(MPI_Request request) {
  return request == MPI_REQUEST_NULL ? Wire::kEnded : std::bit_cast<Wire::Posted>(request);
}

MPI_Request request_of(Wire::Posted posted) {
  const bool is_none = posted == Wire::kEnded || posted == Wire::kFailed || Streams::is_one(posted);
  return is_none ? MPI_REQUEST_NULL : std::bit_cast<MPI_Request>(posted);
}

}  // namespace

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
  if (has_stream(destination, traffic)) return streams_->send(data, bytes, destination, traffic);
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
  if (has_stream(source, traffic)) return streams_->receive(data, bytes, source, traffic);
  const int session_rank = members_[static_cast<std::size_t>(source)];
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, session_rank, tag(traffic),
                             session_->comm(), &request);
  if (code != MPI_SUCCESS) watch_.lose({source}, "MPI cannot reach it: " + describe_error(code));
  return posted_of(request);
}

bool Channel::passes_on(std::span<const int> ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    return std::find(connected_.begin(), connected_.end(), rank) != connected_.end();
  });
}

Wire::Passed Channel::post_passed(std::byte* data, std::int64_t bytes, int source, int destination,
                                  Traffic traffic) {
  if (side_of(traffic) == Side::collective) bytes_sent_ += bytes;
  return streams_->pass_on(data, bytes, source, destination, traffic);
}

std::optional<int> Channel::take(std::byte* data, std::int64_t bytes, Traffic traffic, int source,
                                 std::span<const int> except) {
  if (streams_ && Streams::carries(traffic)) {
    const bool by_stream = source != kAnybody && has_stream(source, traffic);
    if (by_stream || source == kAnybody) {
      const auto sender = streams_->take(data, bytes, traffic, source, except);
      if (sender) watch_.progressed();
      if (!sender && by_stream) {  // whoever looks at notes looks no further
        check_streams(News::are_known);
      }
      if (sender || by_stream) return sender;
    }
  }
  if (except.empty()) return take_from_mpi(data, bytes, traffic, source);
  for (int one = 0; one < size(); ++one) {  // MPI cannot be told whom to pass over
    if (std::find(except.begin(), except.end(), one) != except.end()) continue;
    if (const auto sender = take_from_mpi(data, bytes, traffic, one)) return sender;
  }
  return std::nullopt;
}

std::optional<int> Channel::take_from_mpi(std::byte* data, std::int64_t bytes, Traffic traffic,
                                          int source) {
  int found = 0;
  MPI_Message matched = MPI_MESSAGE_NULL;
  MPI_Status status;
  const int from = source == kAnybody ? MPI_ANY_SOURCE : members_[static_cast<std::size_t>(source)];
  check(MPI_Improbe(from, tag(traffic), session_->comm(), &found, &matched, &status),
        "MPI_Improbe");
  if (found == 0) return std::nullopt;
  // All of it is here.
  check(MPI_Mrecv(data, static_cast<int>(bytes), MPI_BYTE, &matched, MPI_STATUS_IGNORE),
        "MPI_Mrecv");
  watch_.progressed();
  return watch_.rank_of(status.MPI_SOURCE);
}

bool Channel::progress(std::span<Posted> posted, std::span<const int> peers) {
  const bool streams = std::any_of(posted.begin(), posted.end(), &Streams::is_one);
  const bool moved = streams && progress_streams(posted);
  if (progress_mpi(posted, peers) || moved) {
    watch_.progressed();
    return true;
  }
  return false;
}

void Channel::check_streams(News news) {
  if (!streams_->are_in_trouble()) return;
  if (const auto mistaken = streams_->mistaken()) {
    const std::string reason = "it has sent a message of another length than was expected";
    if (news == News::are_heard) watch_.lose_by_message({*mistaken}, reason);
    watch_.lose({*mistaken}, reason);
  }
  if (const auto broken = streams_->broken(now())) {
    watch_.lose({*broken}, "the connection to it for messages of collectives has ended");
  }
}

bool Channel::progress_streams(std::span<Posted> posted) {
  streams_->progress();
  check_streams(News::are_heard);
  bool moved = streams_->have_moved();
  for (Posted& one : posted) {
    if (!Streams::is_one(one) || !streams_->take_ended(one)) continue;
    one = kEnded;
    moved = true;
  }
  return moved;
}

bool Channel::progress_mpi(std::span<Posted> posted, std::span<const int> peers) {
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
    const bool any =
        std::any_of(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(count),
                    [](MPI_Request one) { return one != MPI_REQUEST_NULL; });
    if (!any) continue;
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
      const bool is_right = code != MPI_ERR_IN_STATUS || statuses[i].MPI_ERROR == MPI_SUCCESS;
      some[at] = is_right ? kEnded : kFailed;
      if (is_right) continue;
      failed.push_back(peers[begin + at]);
      error = describe_error(statuses[i].MPI_ERROR);
    }
  }
  if (!failed.empty()) watch_.lose_by_message(failed, "a message failed: " + error);
  return moved;
}

bool Channel::pause(Clock::duration still, Side side) {
  if (still < (is_own_thread() ? kMpiWait.spin : kSpinOfCaller)) {
    kMpiWait.between();
    return OwnWaits::of_this_process().are_quiet();
  }
  if (streams_) {  // MPI moves nothing, such as news of a failure, but in its calls
    streams_->note_nap();
    const int itself = members_[static_cast<std::size_t>(rank())];
    int found = 0;  // nothing: a rank sends nothing to itself
    check(MPI_Iprobe(itself, tag(Traffic::collective), session_->comm(), &found, MPI_STATUS_IGNORE),
          "MPI_Iprobe");
  }
  tend_departed();
  const auto nap = std::chrono::duration_cast<std::chrono::microseconds>(kMpiWait.nap);
  if (streams_ && side == Side::collective) {
    streams_->nap(nap);
  } else {  // what comes over connections is not for this wait
    std::this_thread::sleep_for(nap);
  }
  return true;
}

void Channel::withdraw(Posted receive) {
  if (Streams::is_one(receive)) return streams_->withdraw(receive);
  MPI_Request request = request_of(receive);
  check(MPI_Cancel(&request), "MPI_Cancel");
  check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");  // at once: no message has matched it
}

void Channel::abandon(Traffic traffic, std::span<Posted> receives, std::span<const Posted> sends,
                      std::span<const std::shared_ptr<const void>> kept) noexcept {
  if (streams_ && Streams::carries(traffic)) streams_->stop();
  const auto is_of_mpi = [](Posted one) { return request_of(one) != MPI_REQUEST_NULL; };
  // A send cannot be cancelled, nor a receive whose message has begun to arrive.
  auto left = std::count_if(sends.begin(), sends.end(), is_of_mpi);
  for (const Posted receive : receives) {
    if (!is_of_mpi(receive)) continue;
    ++left;
    if (!session_->may_call()) continue;
    MPI_Request request = request_of(receive);
    int done = 0;
    if (MPI_Cancel(&request) == MPI_SUCCESS) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) --left;
  }
  // Nobody is lost after a mismatch: if nothing is under way, MPI can be finalised. Nor by a
  // question whose answer has come without it: it is short, and leaves without this rank.
  if (traffic != Traffic::question && (left > 0 || !watch_.has_found_mismatch())) fail();
  if (left == 0) return;
  for (const auto& memory : kept) leave_to_mpi(memory);
}

}  // namespace tutti::mpi
