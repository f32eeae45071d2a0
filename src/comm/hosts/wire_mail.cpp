// Offers and replies travel as short messages of their own.
#include "comm/hosts/wire_mail.hpp"

#include <algorithm>
#include <memory>

namespace tutti {
namespace {

static_assert(sizeof(Offer) <= Wire::kShort);

/** Posts a copy of `message`, which the wire may read for as long as it likes. */
template <class T>
void post(Batch& batch, const T& message, int peer) {
  const auto copy = std::make_shared<const T>(message);
  batch.keep(copy);
  batch.send(copy.get(), sizeof(T), peer);
  batch.progress();
}

class Passing final : public Movement {
 public:
  explicit Passing(Wire& wire) : batch(wire, Wire::Traffic::point_to_point) {}
  bool progress() override { return batch.progress(); }
  bool done() const override { return batch.done(); }

  Batch batch;
};

}  // namespace

bool WireMail::offer(int peer, const Offer& offer) {
  post(offers_, offer, peer);
  return true;
}

bool WireMail::collect(Inbox& inbox) {
  bool any = false;
  Offer offer;
  while (const auto source = wire_.take(reinterpret_cast<std::byte*>(&offer), sizeof offer,
                                        Wire::Traffic::offer, Wire::kAnybody)) {
    wire_.note_received(*source, Wire::Traffic::offer);
    inbox.add(*source, offer);
    any = true;
  }
  return any;
}

bool WireMail::accept(int peer, const Envelope& wanted) {
  post(replies_, wanted, peer);
  return true;
}

std::optional<Envelope> WireMail::accepted(int peer, std::uint32_t number) {
  Reply reply;
  while (const auto source = wire_.take(reinterpret_cast<std::byte*>(&reply.wanted),
                                        sizeof(Envelope), Wire::Traffic::reply, Wire::kAnybody)) {
    wire_.note_received(*source, Wire::Traffic::reply);
    reply.source = *source;
    received_.push_back(reply);
  }
  const auto found = std::find_if(received_.begin(), received_.end(), [&](const Reply& one) {
    return one.source == peer && one.wanted.number == number;
  });
  if (found == received_.end()) return std::nullopt;
  const Envelope wanted = found->wanted;
  received_.erase(found);
  return wanted;
}

std::unique_ptr<Movement> WireMail::send(int peer, const ConstView& data) {
  auto passing = std::make_unique<Passing>(wire_);
  passing->batch.send(data.data, data.bytes(), peer);
  return passing;
}

std::unique_ptr<Movement> WireMail::receive(int peer, const View& data) {
  auto passing = std::make_unique<Passing>(wire_);
  passing->batch.recv(data.data, data.bytes(), peer);
  return passing;
}

bool WireMail::flush() {
  offers_.progress();
  replies_.progress();
  return flushed();
}

}  // namespace tutti
