// Turns, short looks and sleep.
#include "ps/link/epoll_links.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/deadline.hpp"
#include "base/waiter.hpp"
#include "device/cpu/relax.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps {
namespace {

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kAlone{10};  // of that, without offering the core
constexpr std::chrono::microseconds kJustWoken{100};
constexpr std::chrono::microseconds kBetweenSockets{200};
constexpr std::chrono::milliseconds kLongest{1000};
constexpr std::chrono::milliseconds kForLastAnswers{5000};
constexpr int kLooksPerClock = 20;
constexpr std::size_t kMostEvents = 64;

}  // namespace

EpollLinks::EpollLinks(std::vector<std::unique_ptr<Peer>> peers)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw SystemError("cannot make a descriptor to wait for workers", errno);
  for (const int descriptor : doorbell_.descriptors()) add(descriptor, EPOLLIN, kDoorbell);
  for (std::unique_ptr<Peer>& peer : peers) {
    const std::size_t at = peers_.size();
    peer->set_doorbell(doorbell_.address());
    add(peer->control(), EPOLLIN | EPOLLRDHUP, label(at, false));
    if (peer->data() >= 0) add(peer->data(), peer->data_events(), label(at, true));
    const std::uint32_t events = peer->data_events();
    peers_.push_back({std::move(peer), events});
  }
}

EpollLinks::~EpollLinks() {
  // Workers that have stopped wait for the answer to that.
  const auto is_sending = [](const Entry& entry) { return entry.peer->is_sending(); };
  Deadline deadline(kForLastAnswers);
  while (std::any_of(peers_.begin(), peers_.end(), is_sending) && !deadline.expired()) {
    look_at_sockets(std::chrono::milliseconds(10), nullptr);
    answer_bell();
  }
  for (Entry& entry : peers_) entry.peer->end();
}

std::optional<Request> EpollLinks::next(std::chrono::nanoseconds limit,
                                        std::unique_lock<std::mutex>& lock) {
  if (has_news()) return std::nullopt;
  const auto start = Clock::now();
  if (start - looked_ > kBetweenSockets) {
    look_at_sockets({}, nullptr);
    InterruptCheck::poll();  // where there is always a request
  }
  if (auto request = take()) return request;
  const Clock::time_point end = limit < Clock::time_point::max() - start
                                    ? start + std::max(limit, std::chrono::nanoseconds(0))
                                    : Clock::time_point::max();
  if (auto request = spin(end, lock)) return request;
  for (;;) {
    answer_bell();  // before it is asked for what
    if (has_news() || Clock::now() >= end) return std::nullopt;
    if (auto request = sleep(end, lock)) return request;
    InterruptCheck::poll();
    // A request is being written: the caller comes back, and looks closely.
    if (rung_) return std::nullopt;
  }
}

std::optional<Request> EpollLinks::poll() {
  if (Clock::now() - looked_ > kBetweenSockets) look_at_sockets({}, nullptr);
  return take();
}

std::optional<Request> EpollLinks::take() {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const std::size_t at = turn_ + i < peers_.size() ? turn_ + i : turn_ + i - peers_.size();
    Peer& peer = *peers_[at].peer;
    if (auto request = peer.take()) {
      watch(at);
      turn_ = at + 1 < peers_.size() ? at + 1 : 0;
      return request;
    }
    if (auto reason = peer.loss()) {
      lost_.push_back({peer.worker(), std::move(*reason)});
      told_ = false;
    }
  }
  return std::nullopt;
}

std::optional<Request> EpollLinks::spin(Clock::time_point end, std::unique_lock<std::mutex>& lock) {
  const bool useful = std::any_of(peers_.begin(), peers_.end(), [](const Entry& entry) {
    return entry.peer->shares_memory() && !entry.peer->has_ended();
  });
  const auto start = Clock::now();
  // Who has woken this thread may have done so on its own core, and now waits there for the answer.
  const bool offers = start - woken_at_ < kJustWoken;
  const auto alone = offers ? Clock::duration{} : kAlone;
  const int looks = offers ? 1 : kLooksPerClock;
  end = std::min(end, start + kSpin);
  for (auto now = start; useful && told_ && now < end; now = Clock::now()) {
    for (int i = 0; i < looks; ++i) {
      if (auto request = take()) return request;
      cpu::relax();
    }
    lock.unlock();
    if (now - start >= alone) offer_core();
    lock.lock();
  }
  return std::nullopt;
}

std::optional<Request> EpollLinks::sleep(Clock::time_point end,
                                         std::unique_lock<std::mutex>& lock) {
  set_sleeping(true);
  auto request = take();
  if (!request && told_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    const auto most = InterruptCheck::active() ? InterruptCheck::kInterval : kLongest;
    look_at_sockets(std::clamp(left, std::chrono::milliseconds(0), most), &lock);
    woken_at_ = looked_;
    request = take();
  }
  set_sleeping(false);
  return request;
}

void EpollLinks::look_at_sockets(std::chrono::milliseconds limit,
                                 std::unique_lock<std::mutex>* lock) {
  std::array<epoll_event, kMostEvents> events;
  if (lock != nullptr) lock->unlock();
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(limit.count()));
  if (lock != nullptr) lock->lock();
  for (int i = 0; i < count; ++i) handle(events[static_cast<std::size_t>(i)].data.u64);
  looked_ = Clock::now();
}

void EpollLinks::add(int descriptor, std::uint32_t events, std::uint64_t label) {
  epoll_event event{events, {.u64 = label}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw SystemError("cannot wait for workers", errno);
  }
}

void EpollLinks::handle(std::uint64_t label) {
  if (label == kDoorbell) {
    rung_ = true;
    return;
  }
  const std::size_t at = label / 2;
  if (label % 2 == 0) {
    peers_[at].peer->handle_control();
  } else {
    peers_[at].peer->handle_data();
  }
  watch(at);
}

void EpollLinks::answer_bell() {
  if (std::exchange(rung_, false)) doorbell_.clear();
}

void EpollLinks::watch(std::size_t peer) {
  Entry& entry = peers_[peer];
  if (entry.peer->data() < 0 || entry.data_events == entry.peer->data_events()) return;
  entry.data_events = entry.peer->data_events();
  epoll_event event{entry.data_events, {.u64 = label(peer, true)}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, entry.peer->data(), &event);
}

void EpollLinks::set_sleeping(bool sleeping) {
  for (Entry& entry : peers_) entry.peer->set_sleeping(sleeping);
}

bool EpollLinks::has_news() {
  const bool woken = woken_ && woken_.exchange(false);
  const bool told = std::exchange(told_, true);
  return woken || !told;
}

void EpollLinks::answer(const Request& request, const ReplyHeader& header,
                        std::span<const std::byte> payload) {
  const auto at = static_cast<std::size_t>(request.worker);
  peers_.at(at).peer->answer(request, header, payload);
  watch(at);
}

std::vector<LostWorker> EpollLinks::lost() {
  told_ = true;
  return std::exchange(lost_, {});
}

void EpollLinks::drop(int worker) {
  peers_.at(static_cast<std::size_t>(worker)).peer->end(ControlByte::late);
}

void EpollLinks::wake() {
  woken_ = true;
  doorbell_.ring();
}

}  // namespace tutti::ps
