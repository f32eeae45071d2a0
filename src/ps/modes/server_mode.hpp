// What servers do with pushes, and when a round is over, in each mode.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ps/link/links.hpp"
#include "ps/modes/members.hpp"
#include "ps/modes/stores.hpp"
#include "tutti/ps/mode.hpp"

namespace tutti::ps {

/** Sees a worker's requests in their order. What it throws is the answer to the request, and has
 * changed nothing. */
class ServerMode {
 public:
  ServerMode(Stores& stores, const Members& members, Links& links)
      : stores_(stores), members_(members), links_(links) {}
  ServerMode(const ServerMode&) = delete;
  ServerMode& operator=(const ServerMode&) = delete;
  virtual ~ServerMode() = default;

  /** A push; answers it, or keeps it unanswered. */
  virtual void push(const Request& request) = 0;
  /** Answers those that it has kept of a worker: another answer is to follow. Takes no memory that
   * it could not do without. */
  virtual void answer_kept(int) {}
  /** A worker has ended so many steps more, each of which is one of the server's. */
  virtual void count_steps(std::int64_t steps) { stores_.step(steps); }
  /** The answer to that, as the members know. Nothing: not yet, asked again later. `saving`:
   * a checkpoint is being written, which is to be of one round. */
  virtual std::optional<Answer> end_round(const Request& request, bool saving) = 0;
  virtual Answer pull_changed(const Request& request);
  /** A worker has stopped, or is lost for this reason. */
  virtual void remove(int worker, const std::string* lost_because) = 0;
  /** Whether no worker can go on after a loss: they are told, and leave. */
  virtual bool has_failed() const { return false; }
  /** Whether they can once the present round has ended. */
  virtual bool can_go_on() const { return true; }
  /** Sync: rounds that have been applied. */
  virtual std::int64_t rounds_applied() const { return 0; }

 protected:
  void answer(const Request& request, const Answer& answer);

  Stores& stores_;
  const Members& members_;
  Links& links_;
};

/** Answers a request. */
void give_answer(Links& links, const Request& request, const Answer& answer);

std::unique_ptr<ServerMode> make_server_mode(const Mode& mode, Stores& stores,
                                             const Members& members, Links& links);
std::unique_ptr<ServerMode> make_server_mode(const Sync& mode, Stores& stores,
                                             const Members& members, Links& links);
/** Async and half-async: half of the latter is what its workers wait for. */
std::unique_ptr<ServerMode> make_server_mode(const Async& mode, Stores& stores,
                                             const Members& members, Links& links);
std::unique_ptr<ServerMode> make_server_mode(const HalfAsync& mode, Stores& stores,
                                             const Members& members, Links& links);
std::unique_ptr<ServerMode> make_server_mode(const Geo& mode, Stores& stores,
                                             const Members& members, Links& links);

}  // namespace tutti::ps
