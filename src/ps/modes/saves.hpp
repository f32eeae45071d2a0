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
 * done, and what they have written has been removed; PeerLost at once. After what an InterruptCheck
 * throws any call may follow.
 */
class Save {
 public:
  /** An empty name: in the servers' own folder. */
  Save(Servers& servers, std::int64_t number, std::string_view folder)
      : servers_(servers), number_(number), folder_(folder) {}

  /** Asks those servers that have not been: the first time all begin. */
  void ask();
  /** ask(), but not again soon after all have answered; whether servers have been asked. */
  bool ask_if_due();

  /** Whether the checkpoint is there. Does not block; to be called again. */
  bool go_on();
  /** Returns when it is there. */
  void wait();

 private:
  /** Takes the answers; whether they are the last. */
  bool take();

  Servers& servers_;
  std::int64_t number_;
  std::string folder_;
  /** What servers are at. */
  enum class Stage { parts, publication, discard };

  Stage stage_ = Stage::parts;
  std::vector<Asked> asked_;  // empty ones have been taken
  bool is_done_ = true;       // by those that have been
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
        : lock_(std::move(lock)), save_(std::move(save)) {
      save_.ask();
    }
    void wait() { save_.wait(); }

   private:
    std::unique_lock<std::mutex> lock_;
    Save save_;
  };

  Begun begin(std::string_view folder);

  // Of those that servers ask for from time to time, in their folder. What fails is logged; what is
  // interrupted is still under way.

  /** Begins one if servers have asked for it, and goes on with it. Does not block. */
  void go_on();
  /** Begins one if servers have asked for it; all servers know of it then, also of one that was
   * interrupted before. Does not block. Whether one is under way that no other thread sees to. */
  bool begin_if_due();
  /** Begins one if servers have asked for it, and waits for what has been begun. */
  void finish();

 private:
  std::unique_lock<std::mutex> lock();
  // Locked:
  void begin_running_if_due();
  void finish_running();
  /** What `action` says to be done is no longer under way, nor is what fails. */
  template <class Action>
  void or_log(const Action& action);

  Servers& servers_;
  News& news_;
  std::mutex mutex_;  // held by a Begun
  std::int64_t begun_ = 0;
  std::optional<Save> running_;  // that servers have asked for
};

}  // namespace tutti::ps
