// The servers as a worker sees them: which of them has what, and what is asked of each.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/shm/memory/segment.hpp"
#include "ps/modes/server_end.hpp"
#include "ps/modes/split.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** Gradients of rows, or what is added to rows, one row an id. */
struct RowPush {
  std::span<const std::int64_t> ids;
  const float* rows = nullptr;
  const float* shows = nullptr;  ///< one an id; null: none
  const float* clicks = nullptr;
};

/** Large copies go past the caches. */
void copy_floats(float* to, const float* from, std::int64_t count);

/** A request whose reply is still to be taken; if nobody takes it, it is forgotten. */
class Asked {
 public:
  Asked() = default;
  Asked(Link& link, std::uint64_t number) : link_(&link), number_(number) {}
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  Asked(Asked&& other) noexcept : link_(std::exchange(other.link_, nullptr)) {
    number_ = other.number_;
  }
  Asked& operator=(Asked&& other) noexcept;
  ~Asked();

  explicit operator bool() const { return link_ != nullptr; }
  bool is_answered() const { return link_->answered() >= number_; }
  /** Waits, and is empty then. Throws PeerLost, and what an InterruptCheck throws: the reply can
   * still be taken. */
  Reply take();

 private:
  Link* link_ = nullptr;
  std::uint64_t number_ = 0;
};

/** A request that is written; if nobody sends it, it has never been. */
class Drafted {
 public:
  Drafted(Link& link, const RequestHeader& request)
      : header(request), link_(&link), draft_(link.draft(request.payload_bytes)) {}
  Drafted(const Drafted&) = delete;
  Drafted& operator=(const Drafted&) = delete;
  Drafted(Drafted&& other) noexcept
      : header(other.header), link_(std::exchange(other.link_, nullptr)), draft_(other.draft_) {}
  Drafted& operator=(Drafted&&) = delete;
  ~Drafted() {
    if (link_ != nullptr) link_->discard(draft_);
  }

  std::byte* payload() const { return draft_.payload.data(); }
  /** Once. */
  Asked send() {
    Link& link = *std::exchange(link_, nullptr);
    return {link, link.send(header, draft_)};
  }

  const RequestHeader header;

 private:
  Link* link_;
  Draft draft_;
};

/** What a worker has done, counted by whichever thread does it. */
struct WorkerCounters {
  std::atomic<std::int64_t> steps{0};
  std::atomic<std::int64_t> pushes{0};
  std::atomic<std::int64_t> merged{0};
  std::atomic<std::int64_t> rows_looked_up{0};
  std::atomic<std::int64_t> rows_pushed{0};
  std::atomic<std::int64_t> torn_rows{0};
};

/** Safe from several threads. What waits or sends throws PeerLost naming the server. */
class Servers {
 public:
  Servers(std::vector<ServerEnd> ends, std::vector<TableSpec> tables,
          std::span<const DenseParameter> dense, std::vector<Name> workers);

  int count() const { return static_cast<int>(ends_.size()); }
  const ServerEnd& end(int server) const { return ends_[static_cast<std::size_t>(server)]; }
  Link& link(int server) const { return *end(server).link; }
  std::span<const TableSpec> tables() const { return tables_; }
  const TableSpec& table(int number) const { return tables_[static_cast<std::size_t>(number)]; }
  /** Of dense parameters, that the server has. */
  std::int64_t elements(int server) const { return elements_[static_cast<std::size_t>(server)]; }
  int parameters() const { return static_cast<int>(rules_.size()); }
  const Rule& rule(int parameter) const { return rules_[static_cast<std::size_t>(parameter)]; }
  const std::string& parameter_name(int parameter) const {
    return names_[static_cast<std::size_t>(parameter)];
  }
  const Name& worker(int index) const { return workers_.at(static_cast<std::size_t>(index)); }
  WorkerCounters& counters() { return counters_; }

  bool all_on_this_host() const { return all_on_this_host_; }

  /** Rows where they lie, or asked for of all other hosts at once. */
  void look_up(int table, std::span<const std::int64_t> ids, float* rows);
  void prefetch(int table, std::span<const std::int64_t> ids);
  /** What was prefetched is old now: it is asked for again. */
  void renew_prefetched();
  /** A step has ended: what was prefetched many steps ago, and not looked up, is dropped. */
  void age_prefetched();

  /** A part of a parameter, as a server has it. */
  struct Piece {
    int server = 0;
    std::size_t block = 0;  ///< of the server's
    std::int64_t in_parameter = 0;
    std::int64_t in_server = 0;
    std::int64_t count = 0;
  };
  std::span<const Piece> pieces(int parameter) const {
    return pieces_[static_cast<std::size_t>(parameter)];
  }
  void pull_dense(int parameter, float* value);
  /** Throws InvalidArgument where a piece is on another host. */
  DenseView view_dense(int parameter);
  /** All blocks of a server. */
  void pull_blocks(int server, float* values);

  /** push_rows or add_rows: the rows at `share`, of which there are some, each times `scale`. */
  Drafted draft_rows(int server, RequestKind kind, int table, const RowPush& push,
                     const IdShare& share, float scale, std::int64_t round) const;
  Asked send_rows(Drafted& rows);
  /** set_dense and add_dense: values of all blocks. Nobody waits for the reply. */
  void send_values(int server, RequestKind kind, std::span<const float> values, std::int64_t round);
  /** Room for the gradients of all blocks of a server; and push_dense, once those of some are
   * there, `count` elements in the order of these numbers of blocks. Nobody waits for the reply;
   * returns the request's number. */
  Draft draft_gradients(int server) const;
  std::uint64_t push_gradients(int server, const Draft& draft, std::int64_t count,
                               std::span<const std::int32_t> blocks, std::int64_t round);
  /** The same of a single block, in memory that stays the caller's: it is written again once the
   * request has been answered. */
  Draft draft_block(int server, std::int64_t count) const;
  std::uint64_t push_block(int server, const Draft& draft, std::int32_t block, std::int64_t round);
  Asked ask(int server, RequestHeader header, std::string_view text = {});
  /** Waits until so many requests can be sent without a wait, or as many as ever can. */
  void make_room(int server, std::int64_t requests);
  /** Throws PeerLost naming a server whose process is not at work, as far as can be seen until an
   * answer is late that the caller has waited for since `waited` ago. */
  void require_presence(std::chrono::milliseconds waited) const;

  /** Waits for a reply that is to be Outcome::done; otherwise throws SystemError for want of
   * memory, PeerLost for a lost worker, DeadlineExceeded for who did not come, Error for a refusal.
   */
  Reply take(int server, Asked& asked) const;
  /** Waits for any reply to a request without text; asks again while it is Outcome::not_yet. */
  Reply wait(int server, Asked& asked, const RequestHeader& header);
  void throw_unless_done(int server, const Reply& reply) const;
  /** Throws if the server has refused a push. */
  void throw_refusal(int server) const;

 private:
  /** A look-up whose rows other hosts have been asked for. */
  struct Lookup {
    int table = 0;
    std::vector<std::int64_t> own_ids;  ///< that `split` may refer to; empty: they are the caller's
    IdSplit split;
    std::vector<Asked> asked;  ///< one a server; none of those on this host
    int steps = 0;             ///< since it was prefetched
  };

  Lookup begin_look_up(int table, std::span<const std::int64_t> ids);
  void finish(Lookup lookup, std::span<const std::int64_t> ids, float* rows);
  /** Elements of a server's blocks: read here, or else asked for. */
  Asked begin_pull(const Piece& piece, float* to);
  void finish_pull(const Piece& piece, Asked& asked, float* to) const;

  std::vector<ServerEnd> ends_;
  std::vector<TableSpec> tables_;
  std::vector<Name> workers_;
  std::vector<Rule> rules_;                 // of each parameter
  std::vector<std::string> names_;          // of each parameter
  std::vector<std::vector<Piece>> pieces_;  // of each parameter
  std::vector<std::int64_t> elements_;      // of each server
  bool all_on_this_host_ = true;
  WorkerCounters counters_;
  std::mutex prefetching_;
  std::deque<Lookup> prefetched_;
  std::mutex viewing_;
  std::vector<std::weak_ptr<const shm::Mapping>> viewed_;  // of each parameter
};

/** Calls action(server) for each; an error of one does not keep the others from theirs. Anything
 * else, such as what an InterruptCheck throws, does, and is what is thrown: those that follow get
 * otherwise(server), which waits for nothing. */
template <class Action, class Otherwise>
void for_each_server(const Servers& servers, const Action& action, const Otherwise& otherwise) {
  std::exception_ptr first;
  bool is_interrupted = false;
  for (int server = 0; server < servers.count(); ++server) {
    try {
      is_interrupted ? otherwise(server) : action(server);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    } catch (...) {
      if (!is_interrupted) first = std::current_exception();
      is_interrupted = true;
    }
  }
  if (first) std::rethrow_exception(first);
}

/** The same, with nothing to be done otherwise. */
template <class Action>
void for_each_server(const Servers& servers, const Action& action) {
  for_each_server(servers, action, [](int /*server*/) {});
}

}  // namespace tutti::ps
