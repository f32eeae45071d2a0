// Messages between ranks of different hosts.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/batch.hpp"
#include "comm/messages.hpp"
#include "comm/wire.hpp"

namespace tutti {

/** Carries the messages of one call over a Wire. */
class WireMail final : public MessageCarrier {
 public:
  /** `wire` outlives it. */
  explicit WireMail(Wire& wire)
      : wire_(wire), offers_(wire, Wire::Traffic::offer), replies_(wire, Wire::Traffic::reply) {}

  bool offer(int peer, const Offer& offer) override;
  std::optional<Envelope> accepted(int peer, std::uint32_t number) override;
  std::unique_ptr<Movement> send(int peer, const ConstView& data) override;
  bool collect(Inbox& inbox) override;
  bool accept(int peer, const Envelope& wanted) override;
  std::unique_ptr<Movement> receive(int peer, const View& data) override;
  bool flush() override;
  bool flushed() const override { return offers_.done() && replies_.done(); }

 private:
  struct Reply {
    int source = 0;
    Envelope wanted;
  };

  Wire& wire_;
  Batch offers_;
  Batch replies_;
  std::vector<Reply> received_;  // that accepted() has not asked for yet
};

}  // namespace tutti
