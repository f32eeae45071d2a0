// What a worker does with the tables and the dense parameters of the servers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/ps/dense.hpp"

namespace tutti::ps {

/** What a worker has done so far. */
struct WorkerStats {
  std::int64_t steps = 0;
  std::int64_t pushes = 0;  ///< that servers have been sent
  std::int64_t merged = 0;  ///< batches that went along with another
  std::int64_t rows_looked_up = 0;
  std::int64_t rows_pushed = 0;  ///< after merging
  std::int64_t torn_rows = 0;    ///< rows that a lookup could not read between two updates
  std::int64_t bytes_sent = 0;   ///< to servers of other hosts
  std::int64_t bytes_received = 0;
};

/**
 * A worker's side. Tables of servers of this host are read where they lie; all else travels.
 * Calls are safe from several threads; step() ends the batch of all of them.
 *
 * Errors: InvalidArgument, before anything is sent, for what does not fit the tables. PeerLost
 * naming a server that has died, from the next call that needs it on; calls that do not need it go
 * on. A push that a server refused for want of memory: SystemError from the next step() or flush().
 * SystemError, too, where there is no memory to send it from: nothing of a push is sent then, and a
 * batch by a later call, as a whole.
 */
class Worker {
 public:
  class Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /** Leaves without stop(): for the servers, this worker is lost. */
  ~Worker();

  int index() const;  ///< of this worker
  int count() const;  ///< of workers at the start
  /** The number of a table or of a dense parameter. Throws InvalidArgument naming those there are.
   */
  int table(std::string_view name) const;
  int parameter(std::string_view name) const;

  /** rows = the rows of `ids`, one after the other; ids may come twice. Blocks. */
  void lookup(int table, std::span<const std::int64_t> ids, std::span<float> rows);
  /** Rows that a lookup asks for soon: a transfer from another host begins. Does not block. */
  void prefetch(int table, std::span<const std::int64_t> ids);
  /** Adds gradients to the batch, one row an id; those of one id are added up in the order in which
   * they come. `shows` and `clicks`, one an id, are for rules of entry and eviction that want them.
   * Copies. Waits for servers only where there is no room for more, and in sync mode while another
   * thread is in step(). */
  void push(int table, std::span<const std::int64_t> ids, std::span<const float> gradients,
            std::span<const float> shows = {}, std::span<const float> clicks = {});
  /** The same of a dense parameter, for which `gradient` has as many elements as the parameter.
   * Copies, unless it is gradient_memory(). */
  void push_dense(int parameter, std::span<const float> gradient);
  /** value = the parameter: as of the last step() in sync mode, this worker's own copy in GEO mode,
   * what it is now otherwise. Blocks. */
  void pull_dense(int parameter, std::span<float> value);
  /** The parameter where its servers have it, without a copy; each time the same memory. In sync
   * mode it changes only within step(), and once this worker has left; otherwise at any time.
   * Throws InvalidArgument for one that is not DenseParameter::shared, where a server of it is on
   * another host, and in GEO mode, in which a worker trains a copy of its own; SystemError. */
  DenseView view_dense(int parameter);

  /** Memory for a parameter's gradient, with anything in it. Whoever pushes it, all of it, saves a
   * copy, if the parameter is DenseParameter::shared, has 4096 elements or more, and all its
   * servers are on this host; otherwise push_dense() copies it, as it does any other memory. Once
   * it is pushed, it is not to be written any more, and push_dense() throws InvalidArgument for it,
   * until servers have read it: in sync mode within step(), and so it is the same memory in each
   * step. In other modes it is to be asked for after each, and there are two of them in turns, or
   * one that is copied while servers are behind. For one thread at a time. Throws SystemError. */
  DenseGradient gradient_memory(int parameter);

  /** Ends a batch. Blocks as the mode says (mode.hpp). Throws PeerLost, and SystemError for a push
   * that a server had no memory for. */
  void step();
  /** Returns once servers have applied all batches that this worker has ended, also those that
   * half-async mode would have merged with later ones. In sync mode that is so after each step();
   * in GEO mode it is an exchange that pushes all of this worker's progress. */
  void flush();
  /** A flush(); returns once all workers that live have called it. DeadlineExceeded naming those
   * who still train at the deadline (it may be called again then); who is not heard of until then
   * is lost. */
  void barrier();
  /** Has the servers write a checkpoint to `folder`, beside the training; returns when it is there.
   * One worker calls it. Throws SystemError. */
  void save(std::string_view folder);
  /** Pushes what is left and leaves; in GEO mode all of this worker's progress. Whatever fails, all
   * else is tried, and the first Error is thrown at the end. No call but stats() is allowed then.
   * What an InterruptCheck ends is called again; until then other calls go on, or throw what has
   * failed, or, where that was so or all has been pushed, an Error that says so. While a thread is
   * in it stop() by another returns at once; once it has ended, it throws an Error. */
  void stop();
  /** Whether stop() has ended, be it by an Error. */
  bool has_stopped() const;
  /** What the servers hear if this worker leaves without stop(), and tell the others as a rule:
   * why, such as an exception's text, in UTF-8, cut to 1024 bytes. Any thread may call it. */
  void set_reason(std::string_view reason);

  /** Any thread may ask. */
  WorkerStats stats() const;
  /** Workers that were lost so far, as far as servers have said so. */
  std::vector<int> lost_workers() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::ps
