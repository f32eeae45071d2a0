// Checks arguments once, and forwards them.
#include "tutti/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "comm/arguments.hpp"
#include "comm/communicator/backends.hpp"
#include "comm/communicator/communicator_impl.hpp"
#include "comm/communicator/launcher.hpp"
#include "comm/communicator/options.hpp"
#include "comm/record/timeline_file.hpp"

namespace tutti {
namespace {

std::unique_ptr<Transport> connect(int local_rank, int world_size, const UniqueId& id,
                                   const CommOptions& options) {
  if (world_size < 1) {
    throw InvalidArgument("world_size is " + std::to_string(world_size) + ", but must be positive");
  }
  check_rank("local_rank", local_rank, world_size);
  return connect_local(local_rank, world_size, id, checked_timeout(options.timeout));
}

void check_scan(const ConstView& in, const View& out, const Reduce& reduce) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_same_device(in, out);
  check_count("out", out, in.count, "as many as in");
  check_scan_reduce(reduce, in);
  check_overlap(in, out, 0);
}

void check_group(std::span<const int> ranks, int self, int size) {
  if (ranks.empty()) refuse("ranks is empty, but must have this rank, ", self);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string name = "ranks[" + std::to_string(i) + "]";
    check_rank(name, ranks[i], size);
    const auto first = std::find(ranks.begin(), ranks.end(), ranks[i]) - ranks.begin();
    if (first != static_cast<std::ptrdiff_t>(i)) {
      refuse(name, " is ", ranks[i], ", as ranks[", first, "] is already");
    }
  }
  if (std::find(ranks.begin(), ranks.end(), self) == ranks.end()) {
    refuse("ranks has ", ranks_text(ranks), ", but this is rank ", self,
           ": a group is made by its members alone");
  }
}

}  // namespace

Communicator::Communicator(const CommOptions& options)
    : Communicator(connect_launch(find_launch(), checked_timeout(options.timeout))) {}

Communicator::Communicator(int local_rank, int world_size, const UniqueId& id,
                           const CommOptions& options)
    : Communicator(connect(local_rank, world_size, id, options)) {}

Communicator::Communicator(std::unique_ptr<Transport> transport)
    : impl_(std::make_shared<Impl>(std::move(transport))) {
  if (const auto timeline = record::current_timeline()) impl_->add_trace(timeline->join(*this));
}

Communicator::Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() {
  if (impl_ && std::uncaught_exceptions() > impl_->exceptions_at_start()) {
    impl_->abort("an exception ended its communicator");
  }
}

void Communicator::refuse_since_moved_from() {
  throw CommunicationError("the communicator was moved from: another one has its ranks");
}

int Communicator::global_rank() const { return impl()->transport().rank(); }
int Communicator::world_size() const { return impl()->transport().size(); }
int Communicator::local_rank() const { return impl()->transport().local_rank(); }
int Communicator::local_size() const { return impl()->transport().local_size(); }
std::string Communicator::describe() const { return impl()->transport().describe(); }
std::int64_t Communicator::bytes_between() const { return impl()->transport().bytes_between(); }

Event Communicator::all_reduce(ConstView in, View out, Reduce reduce, const Stream& stream) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_same_device(in, out);
  check_count("out", out, in.count, "as many as in");
  check_reduce(reduce, in.dtype, in.device);
  check_overlap(in, out, 0);
  return impl()->run(Call::all_reduce(in, out, reduce), stream);
}

Event Communicator::all_reduce(View inout, Reduce reduce, const Stream& stream) {
  check_view("in", inout);
  check_reduce(reduce, inout.dtype, inout.device);
  return impl()->run(Call::all_reduce(inout, inout, reduce), stream);
}

Event Communicator::reduce(ConstView in, View out, int root, Reduce reduce, const Stream& stream) {
  check_view("in", in);
  check_rank("root", root, world_size());
  check_reduce(reduce, in.dtype, in.device);
  if (global_rank() == root) {
    check_view("out", out);
    check_same_dtype(in, out);
    check_same_device(in, out);
    check_count("out", out, in.count, "as many as in");
    check_overlap(in, out, 0);
  }
  return impl()->run(Call::reduce(in, out, reduce, root), stream);
}

Event Communicator::scan(ConstView in, View out, Reduce reduce, const Stream& stream) {
  check_scan(in, out, reduce);
  return impl()->run(Call::scan(in, out, reduce), stream);
}

Event Communicator::exscan(ConstView in, View out, Reduce reduce, const Stream& stream) {
  check_scan(in, out, reduce);
  return impl()->run(Call::exscan(in, out, reduce), stream);
}

Event Communicator::broadcast(ConstView in, View out, int root, const Stream& stream) {
  check_rank("root", root, world_size());
  check_view("out", out);
  check_same_dtype(in, out);
  check_count("out", out, in.count, "as many as in");
  if (global_rank() == root) {
    check_view("in", in);
    check_same_device(in, out);
    check_overlap(in, out, 0);
  }
  return impl()->run(Call::broadcast(in, out, root), stream);
}

Event Communicator::broadcast(View inout, int root, const Stream& stream) {
  return broadcast(inout, inout, root, stream);
}

Event Communicator::all_gather(ConstView in, View out, const Stream& stream) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_same_device(in, out);
  check_count("out", out, in.count * world_size(), "world_size times in.count");
  check_overlap(in, out, in.count * global_rank());
  return impl()->run(Call::all_gather(in, out), stream);
}

Event Communicator::sparse_all_reduce(SparseView in, View out, Reduce reduce, const Stream& stream,
                                      SparseStats* stats) {
  check_view("out", out);
  check_dtype("out", out, DType::f32);
  check_on_cpu("out", out);
  check_sparse_reduce(reduce);
  check_sparse(in, out);
  return impl()->run(Call::sparse_all_reduce(in, out, reduce, stats), stream);
}

Event Communicator::barrier(const Stream& stream) {
  return impl()->run(Call::barrier(stream.device()), stream);
}

Device Communicator::device() const { return choose_device(local_rank(), gpu_count()); }

void Communicator::check_device(Device device) const { impl()->check_device(device); }

void Communicator::watch(const Stream& stream) { impl()->watch(stream); }

Buffer Communicator::allocate(std::int64_t bytes, Device device) {
  constexpr std::int64_t kMost = std::int64_t{1} << 46;  // no address space holds more
  if (bytes < 0 || bytes > kMost) {
    throw InvalidArgument("bytes is " + std::to_string(bytes) + ", but must be from 0 to 2^46");
  }
  Buffer buffer;
  const Call call = Call::allocate(bytes, device);
  if (device.kind == DeviceKind::cpu) {
    impl()->run_here(call, [&](Transport& transport) { buffer = transport.allocate(bytes); });
  } else {
    impl()->run_here_on_gpu(
        call, [&](DeviceTransport& transport) { buffer = transport.allocate(bytes); });
    impl()->fill_with_zeros(buffer.view(DType::u8));
  }
  return buffer;
}

std::vector<double> Communicator::lateness() {
  barrier();  // calls on streams have ended
  // Each rank brings what it has waited for the others; for itself that is nothing.
  const auto size = static_cast<std::size_t>(world_size());
  std::vector<double> late(size);
  if (record::Journal* const journal = impl()->journal()) late = journal->seconds_waited();
  if (size == 1) return {0.0};
  late.resize(size);
  late[static_cast<std::size_t>(global_rank())] = 0;
  all_reduce(View(late.data(), std::ssize(late), DType::f64));
  for (double& seconds : late) seconds /= static_cast<double>(size - 1);
  return late;
}

std::optional<Communicator> Communicator::split(int color, int key) {
  std::unique_ptr<Transport> part;
  Call call = Call::split();
  impl()->run_here(call, [&](Transport& transport) { part = transport.split(color, key); });
  std::unique_ptr<DeviceTransport> gpu_part;
  if (const DeviceTransport* gpu = impl()->gpu()) {
    call.device = gpu->device();
    impl()->run_here_on_gpu(call, [&](DeviceTransport& transport) {
      gpu_part = transport.split(color, key, part.get());
    });
  }
  if (!part) return std::nullopt;
  Communicator result(std::make_shared<Impl>(std::move(part)));
  result.impl_->adopt(std::move(gpu_part));
  result.impl_->share_trace(*impl_);
  return result;
}

Communicator Communicator::group(std::span<const int> ranks) {
  check_group(ranks, global_rank(), world_size());
  std::unique_ptr<Transport> part;
  impl()->run_here(Call::group(), [&](Transport& transport) { part = transport.group(ranks); });
  Communicator result(std::make_shared<Impl>(std::move(part)));
  result.impl_->share_trace(*impl_);
  return result;
}

void Communicator::abort(std::string_view reason) noexcept {
  if (impl_) impl_->abort(reason);
}

}  // namespace tutti
