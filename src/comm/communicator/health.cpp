// Whether a communicator can go on, for all who ask, also when it is gone.
#include "comm/communicator/health.hpp"

#include "tutti/error.hpp"

namespace tutti {

void Health::refuse_if_broken() const {
  if (!broken_) return;
  const std::lock_guard lock(mutex_);
  if (refusal_) std::rethrow_exception(refusal_);
  throw CommunicationError("the communicator is of no more use since an earlier call failed");
}

}  // namespace tutti
