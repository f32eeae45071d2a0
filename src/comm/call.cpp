// Makes the calls of each operation.
#include "tutti/call.hpp"

#include <numeric>

#include "comm/signature.hpp"

namespace tutti {
namespace {

/** Fills in a call on the elements of `main`, of which it has as many as it is said to have. Calls
 * are made in place: at the smallest messages a copy would be felt. */
void fill(Call& call, Operation operation, const ConstView& main, const ConstView& in,
          const View& out) {
  call.operation = operation;
  call.dtype = main.dtype;
  call.count = main.count;
  call.in = in;
  call.out = out;
  call.device = main.device;
}

/** Whose `counts` tell all elements. */
void set_counts(Call& call, std::span<const std::int64_t> counts) {
  call.counts = counts;
  call.count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

Reduce Reduce::premul_sum(double factor) {
  Reduce reduce(ReduceKind::premul_sum);
  reduce.factor = factor;
  return reduce;
}

Call Call::all_reduce(const ConstView& in, const View& out, const Reduce& reduction) {
  Call call;
  fill(call, Operation::all_reduce, in, in, out);
  call.reduction = reduction;
  return call;
}

Call Call::reduce(ConstView in, View out, Reduce reduction, int root) {
  Call call;
  fill(call, Operation::reduce, in, in, out);
  call.reduction = reduction;
  call.root = root;
  return call;
}

Call Call::scan(ConstView in, View out, Reduce reduction) {
  Call call;
  fill(call, Operation::scan, in, in, out);
  call.reduction = reduction;
  return call;
}

Call Call::exscan(ConstView in, View out, Reduce reduction) {
  Call call;
  fill(call, Operation::exscan, in, in, out);
  call.reduction = reduction;
  return call;
}

Call Call::broadcast(ConstView in, View out, int root) {
  Call call;
  fill(call, Operation::broadcast, out, in, out);
  call.root = root;
  return call;
}

Call Call::gather(ConstView in, View out, int root) {
  Call call;
  fill(call, Operation::gather, in, in, out);
  call.root = root;
  return call;
}

Call Call::gather_v(ConstView in, View out, std::span<const std::int64_t> counts, int root) {
  Call call;
  fill(call, Operation::gather_v, in, in, out);
  set_counts(call, counts);
  call.root = root;
  return call;
}

Call Call::scatter(ConstView in, View out, int root) {
  Call call;
  fill(call, Operation::scatter, out, in, out);
  call.root = root;
  return call;
}

Call Call::scatter_v(ConstView in, View out, std::span<const std::int64_t> counts, int root) {
  Call call;
  fill(call, Operation::scatter_v, out, in, out);
  set_counts(call, counts);
  call.root = root;
  return call;
}

Call Call::all_gather(ConstView in, View out) {
  Call call;
  fill(call, Operation::all_gather, in, in, out);
  return call;
}

Call Call::all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts) {
  Call call;
  fill(call, Operation::all_gather_v, out, in, out);
  set_counts(call, counts);
  return call;
}

Call Call::reduce_scatter(ConstView in, View out, Reduce reduction) {
  Call call;
  fill(call, Operation::reduce_scatter, out, in, out);
  call.reduction = reduction;
  return call;
}

Call Call::reduce_scatter_v(ConstView in, View out, std::span<const std::int64_t> counts,
                            Reduce reduction) {
  Call call;
  fill(call, Operation::reduce_scatter_v, in, in, out);
  set_counts(call, counts);
  call.reduction = reduction;
  return call;
}

Call Call::all_to_all(ConstView in, View out, int ranks) {
  Call call;
  fill(call, Operation::all_to_all, in, in, out);
  call.count = in.count / ranks;
  return call;
}

Call Call::all_to_all_v(ConstView in, std::span<const std::int64_t> leaving, View out,
                        std::span<const std::int64_t> arriving) {
  Call call;
  fill(call, Operation::all_to_all_v, in, in, out);
  call.count = 0;
  call.counts = leaving;
  call.arriving = arriving;
  return call;
}

Call Call::sparse_all_reduce(const SparseView& entries, View out, Reduce reduction,
                             SparseStats* stats) {
  Call call;
  fill(call, Operation::sparse_all_reduce, out, {}, out);
  call.reduction = reduction;
  call.entries = entries;
  call.stats = stats;
  return call;
}

Call Call::barrier(Device device) {
  Call call;
  call.device = device;
  return call;
}

Call Call::send(ConstView in, int destination, std::int32_t tag) {
  Call call;
  fill(call, Operation::send, in, in, {});
  call.peer = destination;
  call.tag = tag;
  return call;
}

Call Call::recv(View out, int source, std::int32_t tag, Received* received) {
  Call call;
  fill(call, Operation::recv, out, {}, out);
  call.peer = source;
  call.tag = tag;
  call.received = received;
  return call;
}

Call Call::exchange(std::span<const Message> messages) {
  Call call;
  call.operation = Operation::exchange;
  call.messages = messages;
  for (const Message& message : messages) call.count += message.view().bytes();
  if (!messages.empty()) call.device = messages.front().view().device;
  return call;
}

Call Call::allocate(std::int64_t bytes, Device device) {
  Call call;
  call.operation = Operation::allocate;
  call.count = bytes;
  call.device = device;
  return call;
}

Call Call::split() {
  Call call;
  call.operation = Operation::split;
  return call;
}

Call Call::group() {
  Call call;
  call.operation = Operation::group;
  return call;
}

std::string Call::describe() const { return Signature::of(*this).describe(); }

}  // namespace tutti
