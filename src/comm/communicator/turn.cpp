// The order in which the calls of a communicator run.
#include "comm/communicator/turn.hpp"

namespace tutti {

Turn::Turn(Turns& turns, const Call& call) {
  const bool is_group = call.operation == Operation::group;
  if (call.operation == Operation::exchange || is_group) {
    const std::lock_guard lock(turns.drawing_several);  // two of them in the same order in all
    first_.emplace(turns.sends);
    second_.emplace(turns.receives);
    if (is_group) third_.emplace(turns.collectives);
  } else if (call.operation == Operation::send) {
    first_.emplace(turns.sends);
  } else {
    first_.emplace(call.operation == Operation::recv ? turns.receives : turns.collectives);
  }
}

Turn::~Turn() = default;

void Turn::wait() const {
  first_->wait();
  if (second_) second_->wait();
  if (third_) third_->wait();
}

void Turn::leave() {
  first_->leave();
  if (second_) second_->leave();
  if (third_) third_->leave();
}

}  // namespace tutti
