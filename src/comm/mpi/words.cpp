// Words by connections of the whole, and by MPI.
#include "comm/mpi/words.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/waiter.hpp"
#include "comm/batch.hpp"
#include "comm/mpi/session.hpp"
#include "comm/wire.hpp"

namespace tutti::mpi {

void Words::exchange(const std::vector<Message>& messages, const Memory& memory,
                     std::chrono::milliseconds timeout) const {
  std::vector<Message> over_whole;
  Batch by_mpi(channel_, Wire::Traffic::point_to_point);
  for (const auto& one : memory) by_mpi.keep(one);
  for (const Message& one : messages) {
    if (whole_ != nullptr && whole_->connects(one.rank)) {
      over_whole.push_back(one);
      continue;
    }
    by_mpi.recv(one.others, one.bytes, one.rank);
    by_mpi.send(one.own, one.bytes, one.rank);
  }
  if (!over_whole.empty()) exchange_over_whole(over_whole, memory, timeout);
  by_mpi.wait(timeout);
}

/** The wait is the part's: its deadline, its ranks of this host, and the whole, which it looks
 * after. */
void Words::exchange_over_whole(const std::vector<Message>& messages, const Memory& memory,
                                std::chrono::milliseconds timeout) const {
  Batch batch(whole_->channel(), Wire::Traffic::collective);
  for (const auto& one : memory) batch.keep(one);
  for (const Message& one : messages) {
    batch.recv(one.others, one.bytes, whole_->rank_of(one.rank));
    batch.send(one.own, one.bytes, whole_->rank_of(one.rank));
  }
  const auto awaited = [&] {  // by their ranks in the part
    const auto of_whole = batch.awaited();
    std::vector<int> ranks;
    for (const Message& one : messages) {
      const int rank = whole_->rank_of(one.rank);
      if (std::binary_search(of_whole.begin(), of_whole.end(), rank)) ranks.push_back(one.rank);
    }
    return ranks;
  };
  std::unique_ptr<Wire::Lookout> lookout;
  Waiter waiter(kMpiWait);
  for (;;) {
    bool moved = false;
    whole_->use([&] { moved = batch.progress(); });
    if (batch.done()) return;
    if (moved && lookout) lookout->restart();
    if (!waiter.pause()) continue;
    if (!lookout) lookout = channel_.look_out(Wire::Side::collective, timeout);
    lookout->look(awaited());
  }
}

}  // namespace tutti::mpi
