// A server that only answers, for tests of links: what was asked comes back.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "ps/link/meeting.hpp"

namespace tutti::ps::test {

inline Name worker_name(int worker) { return {worker, "worker " + std::to_string(worker)}; }
/** Servers have the ranks from 100 on. */
inline Name server_name(int server) { return {100 + server, "server " + std::to_string(server)}; }

inline std::vector<Name> worker_names(int workers) {
  std::vector<Name> names;
  for (int worker = 0; worker < workers; ++worker) names.push_back(worker_name(worker));
  return names;
}

/** A listener, and where it is. */
struct Place {
  Listener listener;
  mpi::Endpoint endpoint;
};

inline Place listen_as(int server) {
  std::uint16_t port = 0;
  mpi::Socket socket = mpi::listen_anywhere(port);
  const mpi::Endpoint endpoint = mpi::Endpoint::at(port);
  return {{std::move(socket), endpoint.token, server_name(server)}, endpoint};
}

inline ServerAddress address_of(int server, const mpi::Endpoint& endpoint) {
  return {server_name(server), "here:" + std::to_string(endpoint.port), endpoint};
}

/** What comes back with its payload. */
inline constexpr RequestKind kEcho = RequestKind::save;

/** Answers until all of `workers` have stopped or are lost: kEcho with its own payload, everything
 * else without. Keeps `behind` requests unanswered until no more come. Returns who was
 * lost. */
inline std::vector<LostWorker> echo(Links& links, int workers, std::size_t behind = 0) {
  std::vector<LostWorker> lost;
  std::deque<Request> taken;
  const auto answer = [&] {
    const Request request = taken.front();
    taken.pop_front();
    const bool comes_back = request.header.kind == kEcho;
    links.answer(request, {}, comes_back ? request.payload : std::span<const std::byte>());
    if (request.header.kind == RequestKind::stop) --workers;
  };
  while (workers > 0) {
    const auto request = links.next(std::chrono::milliseconds(taken.empty() ? 1000 : 0));
    if (request) taken.push_back(*request);
    while (!taken.empty() && (!request || taken.size() > behind)) answer();
    for (LostWorker& worker : links.lost()) {
      lost.push_back(std::move(worker));
      --workers;
    }
  }
  return lost;
}

/** Sends a request with this payload. */
inline std::uint64_t send(Link& link, RequestKind kind, std::span<const std::byte> payload,
                          std::int64_t count = 0) {
  const Draft draft = link.draft(std::ssize(payload));
  if (!payload.empty()) std::memcpy(draft.payload.data(), payload.data(), payload.size());
  RequestHeader header;
  header.kind = kind;
  header.table = 0;
  header.count = count;
  header.payload_bytes = std::ssize(payload);
  return link.send(header, draft);
}

inline void stop(Link& link) { link.wait(send(link, RequestKind::stop, {})); }

/** Bytes that tell where they belong. */
inline std::vector<std::byte> pattern(std::size_t bytes, std::size_t seed) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i * 7 + seed + i / 251);
  return all;
}

}  // namespace tutti::ps::test
