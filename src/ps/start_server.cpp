// A server's way to its first request.
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "ps/files/checkpoint.hpp"
#include "ps/greeting.hpp"
#include "ps/server.hpp"
#include "ps/start.hpp"
#include "ps/table/initial.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

/** What a server holds; nothing of it before make(). */
struct Holdings {
  std::vector<Table> tables;
  std::unique_ptr<DenseStore> dense;
  std::int64_t round = 0;

  void make(const StartOptions& options, const Greeting& greeting);
  void load(const StartOptions& options);
  /** Makes the folder for checkpoints ready: before a server of this job can write there. */
  static void tidy(const StartOptions& options);
  /** All who read have opened what there is. */
  void unlink();
};

void Holdings::make(const StartOptions& options, const Greeting& greeting) {
  const int server = options.place.server;
  const int servers = static_cast<int>(options.place.servers.size());
  for (const TableSpec& spec : options.fleet.tables) {
    tables.emplace_back(
        TableIdentity{spec, table_seed(options.fleet.seed, spec.name), server, servers},
        greeting.table_segment(tables.size()));
  }
  std::vector<OwnBlock> blocks;
  for (const Block& block : options.layout[static_cast<std::size_t>(server)]) {
    const DenseParameter& parameter =
        options.fleet.dense[static_cast<std::size_t>(block.parameter)];
    blocks.push_back({block, parameter.rule, parameter.name, element_count(parameter)});
  }
  dense = std::make_unique<DenseStore>(std::move(blocks), greeting.dense_segment());
}

void Holdings::load(const StartOptions& options) {
  round = load_checkpoint(options.fleet.load, {tables, dense.get(), 0}, options.place.server,
                          static_cast<int>(options.place.servers.size()));
}

void Holdings::tidy(const StartOptions& options) {
  const std::string& folder = options.fleet.checkpoint;
  if (folder.empty()) return;
  require_writable(folder);
  if (options.place.server == 0) discard_attempts(folder);
}

void Holdings::unlink() {
  for (Table& table : tables) table.unlink();
  if (dense) dense->unlink();
}

/** The first request of each worker: that it has all it needs, or why not. */
class Beginning {
 public:
  Beginning(Links& links, const std::vector<Name>& workers)
      : links_(links), workers_(workers), members_(workers.size()) {}

  /** Waits for all that live. Returns why the job cannot start, if so. */
  std::optional<Failure> gather(std::chrono::milliseconds timeout) {
    const auto is_awaited = [](const Member& member) { return !member.request && !member.gone; };
    for (Deadline deadline(timeout);
         std::any_of(members_.begin(), members_.end(), is_awaited) && !deadline.expired();) {
      step();
    }
    Failure late{Failure::Kind::lost, 0, {}, {}};
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!is_awaited(members_[i])) continue;
      late.ranks.push_back(workers_[i].rank);
      late.text += (late.text.empty() ? "" : ", ") + workers_[i].text;
    }
    if (!late.ranks.empty()) {
      late.text += ": here, but did not begin within " + seconds_text(timeout) +
                   ", as who waits for another server";
      keep(std::move(late));
    }
    return failure_;
  }

  /** What worker 0 tells all servers: a number that no other job has. */
  std::uint64_t job() const { return job_; }

  /** Answers those that have come. When it is a failure, waits a moment until they have heard it
   * and gone. */
  void answer(const std::optional<Failure>& failure) {
    const std::string text = failure ? failure->encode() : std::string();
    const ReplyHeader header{.outcome = failure ? Outcome::refused : Outcome::done,
                             .payload_bytes = std::ssize(text)};
    for (const Member& member : members_) {
      if (member.request) {
        links_.answer(*member.request, header, std::as_bytes(std::span(text)));
      }
    }
    const auto is_here = [](const Member& member) { return !member.gone; };
    for (Deadline deadline(kToHear); failure && !deadline.expired() &&
                                     std::any_of(members_.begin(), members_.end(), is_here);) {
      step();
    }
  }

 private:
  static constexpr std::chrono::milliseconds kToHear{2000};
  struct Member {
    std::optional<Request> request;
    bool gone = false;
  };

  void step() {
    if (const auto request = links_.next(std::chrono::milliseconds(50))) take(*request);
    for (const LostWorker& lost : links_.lost()) {
      const auto worker = static_cast<std::size_t>(lost.worker);
      members_[worker].gone = true;
      const Name& name = workers_[worker];
      keep({Failure::Kind::lost, 0, {name.rank}, name.text + ": " + lost.reason});
    }
  }
  void take(const Request& request) {
    members_[static_cast<std::size_t>(request.worker)].request = request;
    if (request.worker == 0) job_ = static_cast<std::uint64_t>(request.header.round);
    if (request.payload.empty()) return;
    keep(Failure::decode(
        {reinterpret_cast<const char*>(request.payload.data()), request.payload.size()}));
  }
  /** The first failure is the one that is told. */
  void keep(Failure failure) {
    if (!failure_) failure_ = std::move(failure);
  }

  Links& links_;
  const std::vector<Name>& workers_;
  std::vector<Member> members_;
  std::optional<Failure> failure_;
  std::uint64_t job_ = 0;
};

}  // namespace

std::unique_ptr<Server> start_server(const StartOptions& options, Listener listener) {
  const Placement::Impl& place = options.place;
  const Name name = place.servers[static_cast<std::size_t>(place.server)];
  Greeting greeting;
  Holdings holdings;
  std::exception_ptr own_failure;
  try {
    holdings.make(options, greeting);
    if (!options.fleet.load.empty()) {
      holdings.load(options);
      greeting.loaded = holdings.round;
    }
    Holdings::tidy(options);
  } catch (...) {
    own_failure = std::current_exception();
    greeting.failure = Failure::of(own_failure).at(name.text);
  }

  std::unique_ptr<Links> links = meet_workers(std::move(listener), place.workers, options.terms,
                                              options.format, greeting.encode(), options.timeout);
  Beginning beginning(*links, place.workers);
  std::optional<Failure> failure = beginning.gather(options.timeout);
  holdings.unlink();
  beginning.answer(failure);
  if (own_failure) std::rethrow_exception(own_failure);
  if (failure) failure->raise();

  return make_server({.index = place.server,
                      .servers = static_cast<int>(place.servers.size()),
                      .workers = place.workers,
                      .links = std::move(links),
                      .place = options.server_place,
                      .tables = std::move(holdings.tables),
                      .dense = std::move(holdings.dense),
                      .mode = options.fleet.mode,
                      .round = holdings.round,
                      .timeout = options.timeout,
                      .checkpoint = options.fleet.checkpoint,
                      .every = options.fleet.every,
                      .save_at_end = options.fleet.save_at_end,
                      .job = beginning.job()});
}

}  // namespace tutti::ps
