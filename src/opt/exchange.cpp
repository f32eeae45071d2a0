// How packets of gradients travel between the ranks: one collective each.
#include "opt/exchange.hpp"

namespace tutti {

Event Exchange::average(View packet) {
  return communicator_->all_reduce(packet, Reduce::average, stream_);
}

}  // namespace tutti
