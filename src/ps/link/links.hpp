// A server's ends of its links to all workers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps/link/message.hpp"

namespace tutti::ps {

/** A request that has come, whole. Its payload can be read until it is answered. */
struct Request {
  int worker = 0;
  std::uint64_t number = 0;  ///< of this worker's requests
  RequestHeader header;
  std::span<const std::byte> payload;
};

/** A worker that is lost: it has died, cannot be reached, or has left without stop. */
struct LostWorker {
  int worker = 0;
  std::string reason;
};

/**
 * Takes requests in turns from those workers that have any; sleeps in the kernel when there is
 * nothing, after having looked for a moment. A worker's requests are handed out in order, several
 * before the first is answered, and answered in order. Not thread-safe, but for wake().
 */
class Links {
 public:
  virtual ~Links() = default;

  /** The next request; nothing after `limit`, after wake(), when a worker was lost, or when one has
   * announced a request. Unlocks `lock` while it waits: what else is called meanwhile is called
   * under that lock. */
  virtual std::optional<Request> next(std::chrono::nanoseconds limit,
                                      std::unique_lock<std::mutex>& lock) = 0;
  /** The same, where no other thread asks. */
  std::optional<Request> next(std::chrono::nanoseconds limit) {
    std::mutex alone;
    std::unique_lock lock(alone);
    return next(limit, lock);
  }
  /** A request that is there; never sleeps, and hears of losses as next() does. */
  virtual std::optional<Request> poll() = 0;
  /** Whether requests wake the thread that sleeps in next(). */
  virtual void set_sleeping(bool sleeping) = 0;
  /** Answers the oldest request of its worker that has no answer yet; does nothing if the worker is
   * lost. */
  virtual void answer(const Request& request, const ReplyHeader& header,
                      std::span<const std::byte> payload) = 0;
  /** Workers lost since the last call. What they had sent whole before is handed out first, and can
   * be read until the next call of next(). */
  virtual std::vector<LostWorker> lost() = 0;
  /** Gives up on a worker for which others have waited too long: its link ends. */
  virtual void drop(int worker) = 0;
  /** Makes next() return. Any thread may call it. */
  virtual void wake() = 0;
};

}  // namespace tutti::ps
