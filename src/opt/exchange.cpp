// How the packets of a step travel between the ranks, while others are being made.
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

void Exchange::start(Compressor& compressor, const BucketView& bucket) {
  Transfer& transfer = transfers_[started_];
  if (started_ == 0) sent_before_ = communicator_->bytes_between();
  const Stream& stream = overlap_ ? apart_ : home_;
  try {
    if (overlap_) stream.wait(home_.submit([] {}));  // for the packet
    stream.submit([&transfer] { transfer.arrival.begin = Clock::now(); });
    transfer.collective = compressor.exchange(bucket, stream);
    transfer.noted = stream.submit([&transfer] { transfer.arrival.end = Clock::now(); });
  } catch (const CommunicationError&) {
    // The communicator refuses to go on after a failure; an earlier packet may know which.
    for (std::size_t i = 0; i < started_; ++i) transfers_[i].collective.wait();
    throw;
  }
  ++started_;
}

Exchange::Arrival Exchange::wait(std::size_t i) {
  Transfer& transfer = transfers_[i];
  home_.wait(transfer.collective);
  home_.wait(transfer.noted);
  return transfer.arrival;
}

}  // namespace tutti
