// The loop in which a server looks after its links.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "ps/link/doorbell.hpp"
#include "ps/link/links.hpp"
#include "ps/link/peer.hpp"

namespace tutti::ps {

/**
 * Looks at the shared memory of the links of its host again and again, and at all sockets now and
 * then; after a moment without a request it asks to be rung for, and sleeps in epoll_wait.
 */
class EpollLinks final : public Links {
 public:
  /** peers[i] is worker i. Throws SystemError. */
  explicit EpollLinks(std::vector<std::unique_ptr<Peer>> peers);
  EpollLinks(const EpollLinks&) = delete;
  EpollLinks& operator=(const EpollLinks&) = delete;
  /** Ends all links. */
  ~EpollLinks() override;

  using Links::next;
  std::optional<Request> next(std::chrono::nanoseconds limit,
                              std::unique_lock<std::mutex>& lock) override;
  std::optional<Request> poll() override;
  void set_sleeping(bool sleeping) override;
  void answer(const Request& request, const ReplyHeader& header,
              std::span<const std::byte> payload) override;
  std::vector<LostWorker> lost() override;
  void drop(int worker) override;
  void wake() override;

 private:
  using Clock = std::chrono::steady_clock;

  /** A request that is there. */
  std::optional<Request> take();
  /** Looks closely for a moment. */
  std::optional<Request> spin(Clock::time_point end, std::unique_lock<std::mutex>& lock);
  /** Sleeps until something may be there. */
  std::optional<Request> sleep(Clock::time_point end, std::unique_lock<std::mutex>& lock);
  /** Has the sockets handled of which epoll tells. */
  void look_at_sockets(std::chrono::milliseconds limit, std::unique_lock<std::mutex>* lock);
  /** Whether next() is to return without a request; once. */
  bool has_news();

  struct Entry {
    std::unique_ptr<Peer> peer;
    std::uint32_t data_events = 0;  ///< that epoll looks for
  };
  /** What epoll tells with an event: doorbell_, or a descriptor of a peer. */
  static constexpr std::uint64_t kDoorbell = UINT64_MAX;
  static std::uint64_t label(std::size_t peer, bool data) { return peer * 2 + (data ? 1 : 0); }
  void add(int descriptor, std::uint32_t events, std::uint64_t label);
  void handle(std::uint64_t label);
  /** So that the bell can be heard again. Whoever has just been woken has no time for that. */
  void answer_bell();
  /** Tells epoll what to look for on a data connection. */
  void watch(std::size_t peer);

  std::vector<Entry> peers_;
  FileDescriptor epoll_;
  Doorbell doorbell_;
  std::size_t turn_ = 0;  // whose requests are looked at first
  Clock::time_point looked_{};
  Clock::time_point woken_at_{};  // when it has last slept
  bool rung_ = false;             // the doorbell, and it is not yet answered
  std::vector<LostWorker> lost_;
  bool told_ = true;  // next() has returned for those
  std::atomic<bool> woken_ = false;
};

}  // namespace tutti::ps
