// How a worker sees to checkpoints: all servers write their parts, then server 0 publishes them.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "ps/modes/news.hpp"
#include "ps/modes/servers.hpp"

namespace tutti::ps {

/** Thread-safe. */
class Saves {
 public:
  Saves(Servers& servers, News& news) : servers_(servers), news_(news) {}

  /** Returns when the checkpoint is there; an empty name: in the servers' own folder. Throws
   * SystemError, PeerLost. */
  void save(std::string_view folder);
  /** If servers have asked for a checkpoint, sees to it and waits for it. What fails is for the
   * servers to tell. */
  void save_if_due();
  /** As save_if_due(), but waits for nothing: a later call goes on with it. */
  void go_on();
  /** Waits for what go_on() has begun. */
  void finish();

 private:
  void ask_all(std::int64_t number, std::string_view folder);
  void publish(std::int64_t number, std::string_view folder);
  /** Hears what became of it. */
  void take_published();

  Servers& servers_;
  News& news_;
  std::mutex mutex_;
  std::int64_t begun_ = 0;
  std::optional<std::int64_t> running_;  // its number
  Asked publishing_;  // the last that go_on() has asked for, until it is heard of
};

}  // namespace tutti::ps
