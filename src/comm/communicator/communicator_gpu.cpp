// Runs calls on memory of a GPU: on its streams, under a watch that outlives the communicator.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/waiter.hpp"
#include "comm/communicator/backends.hpp"
#include "comm/communicator/communicator_impl.hpp"

namespace tutti {
namespace {

using std::chrono::milliseconds;

constexpr WaitPolicy kAtTheEnd{
    .spin = milliseconds(2), .nap = milliseconds(1), .interruptible = false};
constexpr milliseconds kLetEnd{5000};  // for the work of a communicator that is destroyed

/** Whether a rank that is alone needs no other to end a call: with a copy of `in`, if anything. */
bool is_local(const Call& call) {
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      return call.reduction.kind != ReduceKind::premul_sum;
    case Operation::broadcast:
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::gather:
    case Operation::gather_v:
    case Operation::scatter:
    case Operation::scatter_v:
    case Operation::all_to_all:
    case Operation::all_to_all_v:
    case Operation::barrier:
      return true;
    default:
      return false;
  }
}

bool is_in_place_exchange(const Call& call) {
  return call.operation == Operation::all_to_all && call.in.data == call.out.data;
}

/** Whether work has ended with the failure of a communicator. What comes later on its stream is not
 * told again. */
bool has_failed(const Event& work) {
  if (!work.ready()) return false;
  try {
    work.wait();
  } catch (const CommunicationError&) {
    return true;
  }
  return false;
}

}  // namespace

/** Of the calls of one communicator. */
class Communicator::Impl::GpuWatch final : public Stream::Watch {
 public:
  explicit GpuWatch(const std::shared_ptr<Impl>& impl) : impl_(impl), health_(impl->health_) {}

  void look(milliseconds waited) override {
    const auto impl = impl_.lock();
    if (!impl) return health_->refuse_if_broken();
    impl->guarded([&] {
      if (DeviceTransport* gpu = impl->gpu()) gpu->poll();  // none where it could not be made
      impl->transport_->pulse(waited);
    });
  }

  void ended() override {
    const auto impl = impl_.lock();
    if (!impl) return health_->refuse_if_broken();
    impl->guarded([&] {
      if (DeviceTransport* gpu = impl->gpu()) gpu->poll();
    });
  }

  bool is_over() const override { return impl_.expired() && !health_->is_broken(); }

 private:
  std::weak_ptr<Impl> impl_;
  std::shared_ptr<Health> health_;
};

Communicator::Impl::~Impl() {
  if (gpu() == nullptr || fork_guard_.in_child()) return;
  transport_.reset();  // the other ranks need not wait for what follows
  if (health_->is_broken()) return;
  for (Waiter waiter(kAtTheEnd, kLetEnd); !last_.ready(); waiter.pause()) {
    if (!waiter.expired()) continue;
    mark_broken(CommunicationError(
        "the communicator was destroyed before its work on the GPU had ended, which was aborted"));
    return;
  }
}

const std::shared_ptr<Communicator::Impl::GpuWatch>& Communicator::Impl::gpu_watch() {
  const std::lock_guard lock(mutex_);
  if (!watch_) watch_ = std::make_shared<GpuWatch>(shared_from_this());
  return watch_;
}

void Communicator::Impl::watch(const Stream& stream) {
  if (stream.device().kind == DeviceKind::cuda) stream.submit([] {}, gpu_watch());
}

/** A GPU's stream goes on by itself. On the CPU's streams the GPU's default stream comes first, and
 * the thread waits for the GPU. */
Event Communicator::Impl::run_on_gpu(const Call& call, const Stream& stream) {
  if (stream.device().kind == DeviceKind::cuda) {
    if (stream.device() != call.device) {
      throw InvalidArgument("stream is of GPU " + std::to_string(stream.device().ordinal) +
                            ", but the memory is of GPU " + std::to_string(call.device.ordinal));
    }
    Turn turn(turns_, call);
    turn.wait();
    return launch(call, stream);
  }
  const Event before = default_stream(call.device);
  if (stream.is_inline()) {
    Turn turn(turns_, call);
    perform_on_gpu(call, before, turn);
    return {};
  }
  return queue(call, stream, [before](Queued& queued) {
    queued.self->perform_on_gpu(queued.call, before, queued.turn);
  });
}

Event Communicator::Impl::default_stream(Device device) {
  const Stream stream = Stream::borrow(device, nullptr);
  try {
    return stream.submit([] {});  // unwatched: nothing of this communicator's is on it
  } catch (const Error& error) {
    if (gpu() == nullptr) return {};  // to connect the GPUs shows all ranks that this one has none
    abort(error.what());
    throw;
  }
}

void Communicator::Impl::perform_on_gpu(const Call& call, const Event& before, Turn& turn) {
  turn.wait();
  const Event done = launch(call, Stream(), before);
  turn.leave();
  try {
    done.wait();
  } catch (...) {
    // Another communicator's, on the default stream, or this one's, which is broken by then.
    if (has_failed(before)) throw;
    guarded([] { throw; });  // who gives up in the middle is out of step
  }
}

Event Communicator::Impl::launch(const Call& call, const Stream& stream, const Event& before) {
  const bool alone = transport_->size() == 1;
  if (is_in_place_exchange(call) && !alone) reserve_copy(call.in.bytes(), call.device);
  const std::lock_guard lock(launching_);
  check_launch(call);
  execute(call, [&] {
    DeviceTransport* const gpu = alone && is_local(call) ? nullptr : &connected(call.device);
    on_this_rank([&] {
      const Stream& on = stream.is_inline() ? own_stream(call.device) : stream;
      on.wait(before);
      if (!(last_stream_ == on)) on.wait(last_);
      last_ = on.submit([&] { start(call, gpu, on); }, gpu_watch());
      last_stream_ = on;
    });
  });
  return last_;
}

void Communicator::Impl::start(const Call& call, DeviceTransport* gpu, const Stream& on) {
  if (gpu == nullptr) {
    if (call.in.data != call.out.data) on.copy(call.out, call.in);
    return;
  }
  gpu->use_stream(on.native());
  if (!is_in_place_exchange(call)) return gpu->run(call);
  // Between GPUs a block may arrive before the one in its place was sent.
  Call from_copy = call;
  from_copy.in = View(copy_.data(), call.in.count, call.in.dtype, call.device);
  on.copy(View(copy_.data(), call.in.count, call.in.dtype, call.device), call.in);
  gpu->run(from_copy);
}

void Communicator::Impl::reserve_copy(std::int64_t bytes, Device device) {
  const std::lock_guard lock(launching_);
  if (copy_.bytes() >= bytes) return;
  const std::int64_t more = std::max(bytes, 2 * copy_.bytes());
  execute(Call::allocate(more, device), [&] {
    last_.wait();  // it may read the present one
    copy_ = Buffer();
    DeviceTransport& gpu = connected(device);
    cuda::with_device(device.ordinal, [&] { copy_ = gpu.allocate(more); });
  });
}

void Communicator::Impl::fill_with_zeros(View memory) {
  if (memory.count == 0) return;
  guarded([&] {
    on_this_rank([&] {
      Stream own;
      {
        const std::lock_guard lock(launching_);
        own = own_stream(memory.device);
      }
      own.fill_with_zeros(memory).wait();
    });
  });
}

void Communicator::Impl::check_launch(const Call& call) const {
  if (gpu() != nullptr) return check_own_gpu(call.device, gpu()->device());
  if (call.is_message() && transport_->size() > 1) {
    throw InvalidArgument(std::string(name_of(call.operation)) +
                          " on memory of a GPU was called before any collective");
  }
  if (!last_stream_.is_inline()) check_own_gpu(call.device, last_stream_.device());
}

DeviceTransport& Communicator::Impl::connected(Device device) {
  if (gpu() == nullptr) adopt(connect_gpus(transport_.get(), device));
  return *gpu();
}

void Communicator::Impl::check_own_gpu(Device device, Device own) {
  if (device == own) return;
  throw InvalidArgument("the memory is of GPU " + std::to_string(device.ordinal) +
                        ", but the communicator is on GPU " + std::to_string(own.ordinal));
}

const Stream& Communicator::Impl::own_stream(Device device) {
  if (own_stream_.is_inline()) own_stream_ = Stream::on(device);
  return own_stream_;
}

}  // namespace tutti
