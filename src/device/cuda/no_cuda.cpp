// The build has no CUDA: there are no GPUs.
#include "base/log.hpp"
#include "device/arithmetic.hpp"
#include "device/cuda.hpp"
#include "tutti/error.hpp"

namespace tutti::cuda {
namespace {

[[noreturn]] void refuse() { throw BackendUnavailable("tutti was built without CUDA"); }

}  // namespace

int device_count() {
  static const int kNone = [] {
    log(LogLevel::info, "no GPU is used: tutti was built without CUDA");
    return 0;
  }();
  return kNone;
}

Device device_of(const void*) { return {}; }
void with_device(int, const std::function<void()>&) { refuse(); }
void prepare(int) { refuse(); }
std::shared_ptr<Stream::Queue> make_queue(int) { refuse(); }
std::shared_ptr<Stream::Queue> borrow_queue(int, void*) { refuse(); }
Buffer allocate_pinned(std::int64_t) { refuse(); }
Uuid uuid_of(int) { refuse(); }
std::shared_ptr<Arithmetic> make_arithmetic(const Stream&) { refuse(); }

}  // namespace tutti::cuda
