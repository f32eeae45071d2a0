// A worker whose servers a test plays itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fake_link.hpp"
#include "ps/dense/layout.hpp"
#include "ps/worker.hpp"

namespace tutti::ps::test {

inline const std::vector<std::int64_t> kSomeIds{1, 2, 3, 4, 5, 6, 7, 8, 9};

/** As a server that does what it is asked for. */
inline Reply answer_to(const FakeServer::Got& got) {
  Reply reply;
  if (got.header.kind == RequestKind::end_round) reply.payload.resize(sizeof(RoundReply));
  if (got.header.kind == RequestKind::look_up)
    reply.payload.resize(static_cast<std::size_t>(got.header.count) * sizeof(float));
  return reply;
}

/** A worker of servers that answer so. */
inline std::unique_ptr<Worker> worker_with(std::span<FakeServer> servers, const Mode& mode,
                                           const std::vector<DenseParameter>& dense = {},
                                           bool servers_save = false) {
  const DenseLayout layout =
      lay_out(dense, static_cast<int>(servers.size()), {.min_block_size = 4});
  WorkerParts parts;
  parts.workers = {{0, "worker 0"}};
  parts.mode = mode;
  for (std::size_t i = 0; i < servers.size(); ++i) {
    servers[i].answer = answer_to;
    parts.servers.push_back(end_of(servers[i], static_cast<int>(i)));
    parts.servers.back().blocks = layout[i];
  }
  parts.dense = dense;
  parts.loaded = true;
  parts.servers_save = servers_save;
  parts.tables.push_back({.name = "item", .dim = 1});
  return make_worker(std::move(parts));
}

inline void push_some(Worker& worker) {
  worker.push(0, kSomeIds, std::vector<float>(kSomeIds.size(), 1.0F));
}

inline void interrupt() { throw Interrupted(); }
inline void go_on() {}

}  // namespace tutti::ps::test
