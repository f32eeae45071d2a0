// A worker's way to its first batch.
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "base/memory.hpp"
#include "base/system.hpp"
#include "ps/greeting.hpp"
#include "ps/start.hpp"
#include "ps/table/initial.hpp"
#include "ps/worker.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

/** Opens what lies in a server's memory, if that is this host's. */
ServerEnd open_end(const StartOptions& options, std::size_t server, const Greeting& greeting,
                   const Link& link) {
  ServerEnd end;
  end.name = options.place.servers[server];
  end.blocks = options.layout[server];
  if (link.on_this_host()) {
    const int servers = static_cast<int>(options.place.servers.size());
    for (const TableSpec& spec : options.fleet.tables) {
      const TableIdentity identity{spec, table_seed(options.fleet.seed, spec.name),
                                   static_cast<int>(server), servers};
      end.tables.emplace_back(identity, greeting.table_segment(end.tables.size()));
    }
    if (!end.blocks.empty()) {
      end.dense.emplace(greeting.dense_segment(), element_count(end.blocks));
    }
  }
  return end;
}

/** That servers have begun with different checkpoints, if so; `loaded` has their rounds. */
std::optional<Failure> difference(const std::vector<Name>& servers,
                                  const std::vector<std::optional<std::int64_t>>& loaded) {
  const auto described = [&](std::size_t server) {
    const auto& round = loaded[server];
    return servers[server].text + " has loaded " +
           (round ? "a checkpoint of round " + std::to_string(*round) : "none");
  };
  for (std::size_t server = 1; server < loaded.size(); ++server) {
    if (loaded[server] == loaded.front()) continue;
    return Failure{
        Failure::Kind::mismatch,
        0,
        {},
        "servers are to begin with one checkpoint: " + described(0) + ", " + described(server)};
  }
  return std::nullopt;
}

/** Tells the servers that this worker can begin, or why not, and hears whether all can. */
void begin(const std::vector<Link*>& links, const std::optional<Failure>& own) {
  const std::string text = own ? own->encode() : std::string();
  std::int64_t job = 0;
  fill_with_random(std::as_writable_bytes(std::span(&job, 1)), "a job");
  std::vector<std::uint64_t> numbers;
  for (Link* const link : links) {
    const Draft draft = link->draft(std::ssize(text));
    copy_bytes(draft.payload.data(), text.data(), std::ssize(text));
    numbers.push_back(link->send({.kind = RequestKind::begin,
                                  .count = std::ssize(text),
                                  .round = job,
                                  .payload_bytes = std::ssize(text)},
                                 draft));
  }
  std::optional<Failure> failure;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const Reply reply = links[i]->wait(numbers[i]);
    if (reply.header.outcome == Outcome::done || failure) continue;
    failure = Failure::decode(
        {reinterpret_cast<const char*>(reply.payload.data()), reply.payload.size()});
  }
  if (failure) failure->raise();
}

}  // namespace

std::unique_ptr<Worker> start_worker(const StartOptions& options,
                                     const std::vector<ServerAddress>& servers) {
  const Placement::Impl& place = options.place;
  const Name& name = place.workers[static_cast<std::size_t>(place.worker)];
  Meeting meeting =
      meet_servers(servers, place.worker, name, options.terms, options.format, options.timeout);
  WorkerParts parts{.index = place.worker,
                    .workers = place.workers,
                    .servers = {},
                    .tables = options.fleet.tables,
                    .dense = options.fleet.dense,
                    .seed = options.fleet.seed,
                    .mode = options.fleet.mode,
                    .servers_save = options.fleet.every.count() > 0,
                    .loaded = false,
                    .server_place = options.server_place};
  std::vector<Link*> links;
  for (const Joined& one : meeting.servers) {
    if (one.link) links.push_back(one.link.get());
  }
  std::vector<std::optional<std::int64_t>> loaded;  // what each server has begun with
  std::exception_ptr own_failure;
  std::optional<Failure> failure;  // what the others are told
  if (!meeting.mismatch.empty()) {
    failure = Failure{Failure::Kind::mismatch, 0, {}, meeting.mismatch};
  }
  try {
    for (std::size_t i = 0; i < meeting.servers.size() && !failure; ++i) {
      const Greeting greeting = Greeting::decode(meeting.servers[i].greeting);
      failure = greeting.failure;
      if (failure) break;
      loaded.push_back(greeting.loaded);
      parts.servers.push_back(open_end(options, i, greeting, *meeting.servers[i].link));
    }
    if (!failure) failure = difference(options.place.servers, loaded);
  } catch (...) {
    own_failure = std::current_exception();
    failure = Failure::of(own_failure).at(name.text);
  }
  try {
    begin(links, failure);
  } catch (...) {
    if (!failure) throw;
  }
  if (own_failure) std::rethrow_exception(own_failure);
  if (failure) failure->raise();
  for (std::size_t i = 0; i < meeting.servers.size(); ++i) {
    parts.servers[i].link = std::move(meeting.servers[i].link);
  }
  parts.loaded = loaded.front().has_value();
  return make_worker(std::move(parts));
}

}  // namespace tutti::ps
