// Keeps the last that each server has said.
#include "ps/modes/news.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/error.hpp"

namespace tutti::ps {

News::News(int servers) : last_(static_cast<std::size_t>(servers)) {}

void News::hear(int server, const Reply& reply) {
  const std::vector<std::byte>& payload = reply.payload;
  if (payload.size() < sizeof(RoundReply)) {
    throw Error("server " + std::to_string(server) + ": a reply of " +
                std::to_string(payload.size()) + " bytes at the end of a round");
  }
  const std::lock_guard lock(mutex_);
  RoundReply& last = last_[static_cast<std::size_t>(server)];
  std::memcpy(&last, payload.data(), sizeof(last));
  if (last.save_due != 0) save_due_ = true;
  for (std::size_t at = sizeof(last); at + sizeof(std::int32_t) <= payload.size();
       at += sizeof(std::int32_t)) {
    std::int32_t worker = 0;
    std::memcpy(&worker, payload.data() + at, sizeof(worker));
    lost_.insert(worker);
  }
}

std::int64_t News::slowest() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::min(last_, {}, &RoundReply::slowest).slowest;
}

std::vector<int> News::lost_workers() const {
  const std::lock_guard lock(mutex_);
  return {lost_.begin(), lost_.end()};
}

bool News::take_save_due() {
  const std::lock_guard lock(mutex_);
  return std::exchange(save_due_, false);
}

}  // namespace tutti::ps
