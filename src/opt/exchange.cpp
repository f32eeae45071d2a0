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
    record::Trace* const trace = this->trace();
    transfer.arrival.slice = {};
    stream.submit([&transfer, trace] {
      transfer.arrival.begin = Clock::now();
      if (trace == nullptr) return;
      transfer.arrival.slice.lane = record::Trace::lane();
      transfer.arrival.slice.begin = trace->now();
    });
    transfer.collective = compressor.exchange(bucket, stream);
    transfer.noted = stream.submit([&transfer, trace] {
      if (trace != nullptr) transfer.arrival.slice.end = trace->now();
      transfer.arrival.end = Clock::now();
    });
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

void Exchange::show(std::size_t i, double together) {
  record::Trace* const trace = this->trace();
  record::Slice slice = transfers_[i].arrival.slice;
  if (trace == nullptr || slice.begin == 0) return;
  slice.name = "exchange";
  slice.arguments[0] = {"packet", static_cast<std::int64_t>(i)};
  slice.arguments[1] = {"overlapped_us", static_cast<std::int64_t>(together * 1e6)};
  trace->add_to(slice.lane, slice);
}

}  // namespace tutti
