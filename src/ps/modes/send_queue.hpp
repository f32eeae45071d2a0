// Batches on their way to a server that need not be there at once.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "ps/modes/batch.hpp"
#include "ps/modes/first_error.hpp"
#include "ps/modes/news.hpp"
#include "ps/modes/servers.hpp"

namespace tutti::ps {

/**
 * Sends batches as they come while the server keeps up: that is, while no more than kUnanswered
 * are not yet applied. Otherwise they wait, and are merged while they do. What waits for a server
 * that is lost is thrown away. Not thread-safe.
 */
class SendQueue {
 public:
  struct Limits {
    std::int64_t merged;   ///< batches in one at most
    std::int64_t waiting;  ///< batches at most
  };
  SendQueue(Servers& servers, News& news, int server, const Limits& limits);

  /** `batch`, which may be the mere end of a round, is empty then. Waits while too many wait.
   * Throws PeerLost. After all else, such as SystemError where there is no memory to send it, or
   * what an InterruptCheck throws, it waits on. */
  void put(Batch& batch, std::int64_t round);
  /** The same, of a batch that is sent later: waits for nothing. */
  void keep(Batch& batch, std::int64_t round);
  /** Waits until all has been applied. Errors as of put(). */
  void flush();
  /** After put() and flush(), which may wait while another server's refusal is known: throws
   * SystemError if a push was refused. Waits for nothing. */
  void check();
  /** A last flush(): what there is no memory to send is thrown away, and what follows it is sent.
   */
  void finish(FirstError& errors);
  /** Sends what waits, if the server has caught up. Errors are for the next put() or flush();
   * throws what an InterruptCheck throws. */
  void move_on();

 private:
  static constexpr std::size_t kUnanswered = 2;

  struct Waiting {
    Batch batch;
    std::int64_t round;
  };
  void send(Batch& batch, std::int64_t round);
  /** Sends it where nothing is before it and the server keeps up. */
  void send_or_enqueue(Batch& batch, std::int64_t round);
  void enqueue(Batch& batch, std::int64_t round);
  /** Sends what waits, as far as there is room. */
  void go_on();
  /** Those that are there; and the next, which is waited for. */
  void take_answers();
  void take_answer();
  void drop_first();
  template <class Action>
  void or_give_up(const Action& action);

  Servers& servers_;
  News& news_;
  int server_;
  Limits limits_;
  std::deque<Asked> unanswered_;  // ends of rounds
  std::optional<Reply> refused_;  // the first of those that was, until it is thrown
  std::deque<Waiting> waiting_;
  std::int64_t waiting_batches_ = 0;
  bool unflushed_ = false;  // something is here, or was sent, for which nobody has waited
  bool unchecked_ = false;  // a caller has not been told what became of it
  std::deque<Batch> spare_;
};

}  // namespace tutti::ps
