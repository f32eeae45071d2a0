// Finds out who shares a host, hands out tickets inside each, and makes the transport.
#include "comm/hosts/connect.hpp"

#include <array>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "comm/agreement.hpp"
#include "comm/batch.hpp"
#include "comm/hosts/transport.hpp"
#include "comm/shm/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

/** The ticket by which the ranks of a host meet: `neighbours` with this rank, of which the lowest
 * hands it to the others. */
UniqueId share_ticket(mpi::Channel& channel, const std::vector<int>& neighbours) {
  const auto ticket =
      std::make_shared<std::array<std::byte, UniqueId::kBytes>>(UniqueId::create().bytes());
  Batch tickets(channel, Wire::Traffic::point_to_point);
  tickets.keep(ticket);
  if (neighbours.front() != channel.rank()) {
    tickets.recv(ticket->data(), std::ssize(*ticket), neighbours.front());
  } else {
    for (const int neighbour : neighbours) {
      if (neighbour != channel.rank()) {
        tickets.send(ticket->data(), std::ssize(*ticket), neighbour);
      }
    }
  }
  tickets.wait();
  return UniqueId::from_bytes(*ticket);
}

/** How they look after each other meanwhile. */
shm::Participants participants_of(const std::shared_ptr<mpi::Session>& session,
                                  mpi::Channel& channel, const std::vector<int>& neighbours) {
  // Who is missing may wait itself, for its ticket or one step before.
  const auto named = [&neighbours](const std::vector<int>& missing) {
    std::vector<int> names;
    for (const int rank : missing) names.push_back(neighbours[static_cast<std::size_t>(rank)]);
    return names;
  };
  return {
      .names = neighbours,
      .idle = [&channel, named](const std::vector<int>& missing) { channel.poll(named(missing)); },
      .investigate =
          [&channel, named](const std::vector<int>& missing) {
            return [find_out = channel.investigation(named(missing))](const auto&) { find_out(); };
          },
      .on_loss = [session] { session->fail(); }};
}

}  // namespace

std::unique_ptr<Transport> connect_session(const std::shared_ptr<mpi::Session>& session,
                                           std::chrono::milliseconds timeout) {
  std::vector<int> everybody;
  for (int rank = 0; rank < session->size(); ++rank) everybody.push_back(rank);
  const std::int32_t context = session->next_context();
  session->use_context(context);
  auto channel = std::make_unique<mpi::Channel>(session, std::move(everybody), context, timeout);

  Layout layout(session->hosts());
  const std::span<const int> here = layout.ranks_of(layout.host_of(session->rank()));
  const std::vector<int> neighbours(here.begin(), here.end());
  const int local_rank = layout.local_rank_of(session->rank());

  const UniqueId ticket = share_ticket(*channel, neighbours);
  std::unique_ptr<shm::Local> local;
  try {
    local = std::make_unique<shm::Local>(ticket, local_rank, neighbours, timeout,
                                         participants_of(session, *channel, neighbours));
  } catch (const PeerLost& error) {  // the other hosts should not wait for this rank
    channel->announce_lost(error.ranks(), error.reason());
    throw;
  } catch (const std::exception& error) {
    const int self = session->rank();
    channel->announce_lost(std::span(&self, 1), error.what());
    throw;
  }
  std::unique_ptr<Transport> transport;
  if (layout.host_count() == 1) {
    transport = std::make_unique<shm::ShmTransport>(std::move(local));
  } else {
    transport = std::make_unique<HierarchicalTransport>(std::move(channel), std::move(layout),
                                                        std::move(local));
  }
  require_agreement(*transport);
  return transport;
}

}  // namespace tutti
