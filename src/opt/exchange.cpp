// How packets of gradients travel between the ranks: one collective each.
#include "opt/exchange.hpp"

#include "tutti/error.hpp"

namespace tutti {

void Exchange::begin(bool overlap) {
  started_ = 0;
  overlap_ = overlap;
  if (overlap && apart_.is_inline()) {
    apart_ = home_.is_inline() ? Stream::worker() : Stream::on(home_.device());
  }
}

Event Exchange::travel(const Packet& packet, const Stream& stream) {
  if (packet.gathered) {
    return communicator_->all_gather(packet.gathered->own, packet.gathered->all, stream);
  }
  if (!packet.entries) return communicator_->all_reduce(packet.elements, packet.reduce, stream);
  return communicator_->sparse_all_reduce(*packet.entries, packet.elements, packet.reduce, stream);
}

void Exchange::start(const Packet& packet) {
  Journey& journey = journeys_[started_];
  if (started_ == 0) sent_before_ = communicator_->bytes_between();
  const Stream& stream = overlap_ ? apart_ : home_;
  try {
    if (overlap_) stream.wait(home_.submit([] {}));  // for the packet
    stream.submit([&journey] { journey.arrival.begin = Clock::now(); });
    journey.collective = travel(packet, stream);
    journey.noted = stream.submit([&journey] { journey.arrival.end = Clock::now(); });
  } catch (const CommunicationError&) {
    // The communicator refuses to go on after a failure; an earlier packet may know which.
    for (std::size_t i = 0; i < started_; ++i) journeys_[i].collective.wait();
    throw;
  }
  ++started_;
}

Exchange::Arrival Exchange::wait(std::size_t i) {
  Journey& journey = journeys_[i];
  home_.wait(journey.collective);
  home_.wait(journey.noted);
  return journey.arrival;
}

}  // namespace tutti
