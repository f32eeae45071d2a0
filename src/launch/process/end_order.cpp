// Sees processes end, by pidfds in an epoll.
#include "launch/process/end_order.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "tutti/error.hpp"

namespace tutti::launch {

EndOrder::EndOrder(std::size_t count) : epoll_(::epoll_create1(EPOLL_CLOEXEC)), processes_(count) {
  if (!epoll_) throw SystemError("cannot make an epoll for the ends of ranks", errno);
}

void EndOrder::watch(std::size_t index, pid_t process) {
  FileDescriptor watched(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!watched) return;
  // Of one that has ended its place would be that of now, behind who has ended after it.
  pollfd query{watched.get(), POLLIN, 0};
  if (::poll(&query, 1, 0) != 0) return;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u64 = index;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watched.get(), &event) != 0) return;
  processes_[index].watched = std::move(watched);
}

void EndOrder::look() {
  for (;;) {
    std::array<epoll_event, 64> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count <= 0) return;
    const SteadyClock::time_point now = SteadyClock::now();
    for (int i = 0; i < count; ++i) {
      Ending& process = processes_[events[static_cast<std::size_t>(i)].data.u64];
      process.watched.reset(-1);
      process.place = seen_++;
      process.moment = std::min(process.moment, now);
    }
  }
}

void EndOrder::ended(std::size_t index, SteadyClock::time_point moment) {
  look();
  Ending& last = processes_[index];
  last.moment = std::min(last.moment, moment);
  if (last.place == kNone) return;
  for (Ending& process : processes_) {
    if (process.place < last.place) process.moment = std::min(process.moment, last.moment);
  }
}

}  // namespace tutti::launch
