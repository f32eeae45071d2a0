// How packets of gradients travel between the ranks: one collective each.
#pragma once

#include <memory>
#include <utility>

#include "tutti/communicator.hpp"

namespace tutti {

/** Exchanges packets with the other ranks, which do so in the same order, on one stream. */
class Exchange {
 public:
  Exchange(std::shared_ptr<Communicator> communicator, Stream stream)
      : communicator_(std::move(communicator)), stream_(std::move(stream)) {}

  /**
   * Starts the average of `packet` over the ranks, in place; the event tells when it is there.
   * Errors are those of Communicator, from the call or from the event.
   */
  Event average(View packet);

 private:
  std::shared_ptr<Communicator> communicator_;
  Stream stream_;
};

}  // namespace tutti
