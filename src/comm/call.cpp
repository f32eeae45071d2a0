// Makes the calls of each operation.
#include "tutti/call.hpp"

#include <numeric>

#include "comm/signature.hpp"

namespace tutti {
namespace {

/** A call on the elements of `main`, of which it has as many as it is said to have. */
Call call_on(Operation operation, const ConstView& main, const ConstView& in, const View& out) {
  Call call;
  call.operation = operation;
  call.dtype = main.dtype;
  call.count = main.count;
  call.in = in;
  call.out = out;
  call.device = main.device;
  return call;
}

Call reducing(Call call, const Reduce& reduction) {
  call.reduction = reduction;
  return call;
}

/** `call` of which `counts` tell all elements. */
Call counted(Call call, std::span<const std::int64_t> counts) {
  call.counts = counts;
  call.count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  return call;
}

Call rooted(Call call, int root) {
  call.root = root;
  return call;
}

Call between(Call call, int peer) {
  call.peer = peer;
  return call;
}

}  // namespace

Reduce Reduce::premul_sum(double factor) {
  Reduce reduce(ReduceKind::premul_sum);
  reduce.factor = factor;
  return reduce;
}

Call Call::all_reduce(ConstView in, View out, Reduce reduction) {
  return reducing(call_on(Operation::all_reduce, in, in, out), reduction);
}

Call Call::reduce(ConstView in, View out, Reduce reduction, int root) {
  return rooted(reducing(call_on(Operation::reduce, in, in, out), reduction), root);
}

Call Call::scan(ConstView in, View out, Reduce reduction) {
  return reducing(call_on(Operation::scan, in, in, out), reduction);
}

Call Call::exscan(ConstView in, View out, Reduce reduction) {
  return reducing(call_on(Operation::exscan, in, in, out), reduction);
}

Call Call::broadcast(ConstView in, View out, int root) {
  return rooted(call_on(Operation::broadcast, out, in, out), root);
}

Call Call::gather(ConstView in, View out, int root) {
  return rooted(call_on(Operation::gather, in, in, out), root);
}

Call Call::gather_v(ConstView in, View out, std::span<const std::int64_t> counts, int root) {
  return rooted(counted(call_on(Operation::gather_v, in, in, out), counts), root);
}

Call Call::scatter(ConstView in, View out, int root) {
  return rooted(call_on(Operation::scatter, out, in, out), root);
}

Call Call::scatter_v(ConstView in, View out, std::span<const std::int64_t> counts, int root) {
  return rooted(counted(call_on(Operation::scatter_v, out, in, out), counts), root);
}

Call Call::all_gather(ConstView in, View out) {
  return call_on(Operation::all_gather, in, in, out);
}

Call Call::all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts) {
  return counted(call_on(Operation::all_gather_v, out, in, out), counts);
}

Call Call::reduce_scatter(ConstView in, View out, Reduce reduction) {
  return reducing(call_on(Operation::reduce_scatter, out, in, out), reduction);
}

Call Call::reduce_scatter_v(ConstView in, View out, std::span<const std::int64_t> counts,
                            Reduce reduction) {
  return reducing(counted(call_on(Operation::reduce_scatter_v, in, in, out), counts), reduction);
}

Call Call::all_to_all(ConstView in, View out, int ranks) {
  Call call = call_on(Operation::all_to_all, in, in, out);
  call.count = in.count / ranks;
  return call;
}

Call Call::all_to_all_v(ConstView in, std::span<const std::int64_t> leaving, View out,
                        std::span<const std::int64_t> arriving) {
  Call call = call_on(Operation::all_to_all_v, in, in, out);
  call.count = 0;
  call.counts = leaving;
  call.arriving = arriving;
  return call;
}

Call Call::sparse_all_reduce(const SparseView& entries, View out, Reduce reduction,
                             SparseStats* stats) {
  Call call = reducing(call_on(Operation::sparse_all_reduce, out, {}, out), reduction);
  call.entries = entries;
  call.stats = stats;
  return call;
}

Call Call::barrier(Device device) {
  Call call;
  call.device = device;
  return call;
}

Call Call::send(ConstView in, int destination) {
  return between(call_on(Operation::send, in, in, {}), destination);
}

Call Call::recv(View out, int source) {
  return between(call_on(Operation::recv, out, {}, out), source);
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

std::string Call::describe() const { return Signature::of(*this).describe(); }

}  // namespace tutti
