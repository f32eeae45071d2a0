// Workers and servers of a job find each other: a connection each, on which they compare what they
// hold.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/meeting/endpoint.hpp"
#include "ps/link/link.hpp"
#include "ps/link/links.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps {

/** What both sides must have alike, one line each: "mode: async", "table item: dim 16, ...". */
using Terms = std::vector<std::string>;

/** How a rank is named in errors: its rank in the job, and "worker 1" or "server 0". */
struct Name {
  int rank = 0;
  std::string text;
};

/** A server as a worker looks for it. */
struct ServerAddress {
  Name name;
  std::string address;     ///< for messages: "10.0.0.1:36000", or the host
  mpi::Endpoint endpoint;  ///< its token shows that both sides belong to one job
  /** Tells lists of endpoints apart, where the token is of such a list and TUTTI_SECRET: then who
   * shows another token is told what differs. Otherwise 0. */
  std::uint32_t list = 0;
};

struct Joined {
  std::unique_ptr<Link> link;
  std::string greeting;  ///< what the server gave to meet_workers()
};

/** What has come of a worker's calls. */
struct Meeting {
  /** One a server. Where terms differ, a server that has not let all workers in has no link. */
  std::vector<Joined> servers;
  std::string mismatch;  ///< both sides, where terms differ; otherwise empty
};

/** What a server listens with. */
struct Listener {
  mpi::Socket socket;
  mpi::Token token;
  Name name;
  std::uint32_t list = 0;  ///< as ServerAddress::list
};

/** What rows look like between hosts. */
struct RowFormat {
  std::vector<std::int64_t> dims;  ///< of the tables, f32 elements
  WireFormat wire = WireFormat::f32;
};

/**
 * Connects this worker to all servers, trying again while they are not there, and saying after some
 * seconds whom it waits for. Blocks. Where terms differ from a server's, those of the others that
 * still wait for workers are told so; those that do not are to be told over their links. Throws
 * PeerLost listing the servers that are missing at the deadline.
 */
Meeting meet_servers(std::span<const ServerAddress> servers, int worker, const Name& name,
                     const Terms& terms, const RowFormat& format,
                     std::chrono::milliseconds timeout);

/** Waits until all workers have come. Strangers are turned away. Throws PeerLost
 * listing who is missing at the deadline, and MismatchError showing both sides where terms differ;
 * who has come is told so, and fails as well. */
std::unique_ptr<Links> meet_workers(Listener listener, std::span<const Name> workers,
                                    const Terms& terms, const RowFormat& format,
                                    const std::string& greeting, std::chrono::milliseconds timeout);

}  // namespace tutti::ps
