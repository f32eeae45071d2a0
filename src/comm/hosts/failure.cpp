// What goes wrong inside a host is told to the other hosts, and the reverse.
#include <chrono>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "comm/hosts/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {

void HierarchicalTransport::tell_failure(Witnesses witnesses) noexcept {
  try {
    throw;
  } catch (const PeerLost& error) {
    tell(error);
  } catch (const OneSidedMismatch& error) {
    tell(error, Witnesses::two);
  } catch (const NeighboursMismatch& error) {
    tell(error, Witnesses::two);
  } catch (const MismatchError& error) {
    tell(error, witnesses);
  } catch (const CorruptPacket& error) {  // the others hear who sent it
    tell(PeerLost({error.rank()}, error.what()));
  } catch (const CommunicationError& error) {  // found by this rank alone
    abort(error.what());
  } catch (...) {  // Communicator decides what it means
  }
}

// The neighbours hear first, then the other hosts. Last comes what takes long where there is much
// symmetric memory, and what only this rank needs.

void HierarchicalTransport::tell(const PeerLost& error) noexcept {
  shm::LocalGroup& host = local_->group();
  const Ended ended = ended_of(error);
  const Herald herald = host.show_lost(error.ranks(), error.reason(), ended);
  channel_->announce_lost(error.ranks(), error.reason(), herald, ended);
  host.part_with_others();
}

void HierarchicalTransport::tell(const MismatchError& error, Witnesses witnesses) noexcept {
  shm::LocalGroup& host = local_->group();
  if (!channel_->session()->this_thread_may_call()) {  // another thread's next call tells
    channel_->note_mismatch(error.what());
    return host.part_with_others();
  }
  // Of what another host has told this rank it has told all: the neighbours need not.
  const bool is_told = channel_->has_found_mismatch();
  const Herald herald = host.show_mismatch(error.what(), is_told ? Witnesses::all : witnesses);
  if (witnesses == Witnesses::two) {
    channel_->announce_mismatch(error.what(), herald);
  } else {
    channel_->note_mismatch(error.what());
  }
  host.part_with_others();
}

std::vector<int> HierarchicalTransport::others() const {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  ranks.erase(ranks.begin() + rank());
  return ranks;
}

void HierarchicalTransport::look_after_present() {
  guarded([&] {
    local_->group().look_after_present();
    // A store is used from any thread. What the thread that may call MPI hears, this one sees.
    if (channel_->session()->this_thread_may_call()) channel_->poll(others());
  });
}

void HierarchicalTransport::lose_ended(const PeerLost& ended) {
  look_after_present();  // another failure may have come before, or a farewell
  const int lost = ended.ranks().front();
  const bool has_left = shares_host(lost) ? local_->group().has_left(layout_.local_rank_of(lost))
                                          : channel_->has_left(lost);
  if (has_left) return;
  guarded([&] { throw ProcessesEnded(ended.ranks(), ended.reason()); });
}

void HierarchicalTransport::pulse(std::chrono::milliseconds waited) {
  guarded([&] {
    local_->group().look_after_all();
    const std::vector<int> ranks = others();
    channel_->poll(ranks);
    // The control messages reach the ranks of this host, too.
    if (waited >= channel_->timeout()) channel_->investigate(ranks, waited - channel_->timeout());
  });
}

void HierarchicalTransport::abort(std::string_view reason) noexcept {
  const int self = rank();
  shm::LocalGroup& host = local_->group();
  const Herald herald = host.show_lost(std::span(&self, 1), reason);
  channel_->announce_lost(std::span(&self, 1), reason, herald);
  host.part_with_others();
}

}  // namespace tutti
