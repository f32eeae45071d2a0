// How a worker sees to checkpoints: all servers write their parts, then server 0 publishes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ps/modes/news.hpp"
#include "ps/modes/servers.hpp"

namespace tutti::ps {

/**
 * One checkpoint. Servers are asked how far they are, and answer at once: the writing may well take
 * longer than an answer may. All are asked until the last has done, so that each knows what this
 * worker is at. What goes wrong is thrown: SystemError with what the server said, once all have
 * done; PeerLost at once.
 */
class Save {
 public:
  /** All servers begin; an empty name: in their own folder. */
  Save(Servers& servers, std::int64_t number, std::string_view folder);

  /** Whether the checkpoint is there. Does not block; to be called again. */
  bool go_on();
  /** Returns when it is there. */
  void wait();

 private:
  void ask();
  /** Takes the answers; whether they are the last. */
  bool take();

  Servers& servers_;
  std::int64_t number_;
  std::string folder_;
  bool publishing_ = false;  // all parts are there
  std::vector<Asked> asked_;
  std::chrono::steady_clock::time_point next_look_{};
  std::exception_ptr failure_;  // the first
};

/** Thread-safe. Whoever begins a checkpoint waits for the one before. */
class Saves {
 public:
  Saves(Servers& servers, News& news) : servers_(servers), news_(news) {}

  /** A checkpoint that all servers have been asked for; meanwhile there is no other. */
  class Begun {
   public:
    Begun(std::unique_lock<std::mutex> lock, Save save)
        : lock_(std::move(lock)), save_(std::move(save)) {}
    void wait() { save_.wait(); }
    /** Nobody has asked for it: what fails is logged. */
    void wait_or_log();

   private:
    std::unique_lock<std::mutex> lock_;
    Save save_;
  };

  Begun begin(std::string_view folder);
  /** If servers have asked for one, in their folder. */
  std::optional<Begun> begin_if_due();
  /** Begins one if servers have asked for it, and goes on with it. Does not block. What fails is
   * logged. */
  void go_on();
  /** Waits for what go_on() has begun. */
  void finish();

 private:
  std::unique_lock<std::mutex> lock();
  /** Locked. */
  void finish_running();

  Servers& servers_;
  News& news_;
  std::mutex mutex_;  // held by a Begun
  std::int64_t begun_ = 0;
  std::optional<Save> running_;  // that go_on() has begun
};

}  // namespace tutti::ps
