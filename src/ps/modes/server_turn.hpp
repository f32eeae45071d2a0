// How a worker does the work of its own process' server, while it waits for it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

namespace tutti::ps {

/** A server, as far as another thread than its own may do its work. It is held meanwhile. */
class Serving {
 public:
  Serving() = default;
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  virtual ~Serving() = default;

  /** From now on requests wake nobody. */
  virtual void stay_awake() = 0;
  /** Does what has been asked for; whether there was anything. */
  virtual bool serve_next() = 0;
  /** The server's own thread, which sleeps, goes on: whatever comes from now on wakes it. */
  virtual void rest() = 0;
};

/**
 * What is held by whoever does a server's work: its own thread, but not while that sleeps, or the
 * worker of the same process, which would wait until the other thread has woken up, and has had the
 * core. Alike in a process of its own, where nobody else asks for it.
 */
struct ServerPlace {
  std::mutex mutex;
  Serving* server = nullptr;  ///< while it serves; locked
};

/** A worker's turn. */
class ServerTurn {
 public:
  /** Begins, unless there is no such server, or its thread is at work. */
  explicit ServerTurn(ServerPlace* place);
  ServerTurn(const ServerTurn&) = delete;
  ServerTurn& operator=(const ServerTurn&) = delete;
  /** Ends. */
  ~ServerTurn();

  /** Does the server's work until done(), or until nothing has been asked for during a moment.
   * Returns at once without a turn. */
  void serve_until(const std::function<bool()>& done);

 private:
  std::unique_lock<std::mutex> lock_;
  Serving* server_ = nullptr;  // null: it has none
};

}  // namespace tutti::ps
