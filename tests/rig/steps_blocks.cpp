// Steps that move a block to or from each rank, and scans.
#include <cstddef>
#include <numeric>

#include "rig/oracle.hpp"
#include "rig/steps.hpp"

namespace tutti::test {
namespace {

Pattern sent_by(int rank, const Step& step, std::uint64_t salt) {
  return Pattern::contribution(step.dtype, ReduceKind::sum, salt, rank);
}

std::string part_name(int rank) { return "the part of rank " + std::to_string(rank); }

}  // namespace

void Steps::to_or_from_root(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const bool is_root = rank == step.root;
  const bool gathers = step.op == Op::gather || step.op == Op::gather_v;
  const bool uneven = step.op == Op::gather_v || step.op == Op::scatter_v;
  std::vector<std::int64_t> counts;
  for (int r = 0; r < comm.world_size(); ++r) {
    counts.push_back(uneven ? part_of(step.count, salt, r) : step.count);
  }
  const std::int64_t own = counts[static_cast<std::size_t>(rank)];
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const View in = memory_.in(step, rank, gathers ? own : all);
  const View out = memory_.out(step, rank, gathers ? all : own);
  // visit(rank, view) for the block of each rank in the root's memory.
  const auto for_each_block = [&](const View& whole, const auto& visit) {
    std::int64_t begin = 0;
    for (int r = 0; r < comm.world_size(); ++r) {
      const std::int64_t count = counts[static_cast<std::size_t>(r)];
      visit(r, whole.part(begin, count));
      begin += count;
    }
  };
  if (gathers) {
    sent_by(rank, step, salt).write(in);
  } else if (is_root) {
    for_each_block(in, [&](int r, const View& block) { sent_by(r, step, salt).write(block); });
  }
  before_call();
  if (step.op == Op::gather) {
    comm.gather(in, out, step.root);
  } else if (step.op == Op::gather_v) {
    comm.gather_v(in, out, counts, step.root);
  } else if (step.op == Op::scatter) {
    comm.scatter(in, out, step.root);
  } else {
    comm.scatter_v(in, out, counts, step.root);
  }
  if (!gathers) {
    sent_by(rank, step, salt).check(out, "the result");
  } else if (is_root) {
    for_each_block(
        out, [&](int r, const View& block) { sent_by(r, step, salt).check(block, part_name(r)); });
  }
}

void Steps::scatter_v(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  std::vector<std::int64_t> counts;
  for (int r = 0; r < comm.world_size(); ++r) counts.push_back(part_of(step.count, salt, r));
  const auto mine = counts.begin() + rank;
  const std::int64_t begin = std::accumulate(counts.begin(), mine, std::int64_t{0});
  const View in =
      memory_.in(step, rank, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  const View out = memory_.out(step, rank, *mine);
  Pattern::contribution(step.dtype, step.reduce.kind, salt, rank).write(in);
  before_call();
  comm.reduce_scatter_v(in, out, counts, step.reduce);
  Pattern::reduced(step.dtype, step.reduce, salt, comm.world_size())
      .check(out, "the result", begin);
}

void Steps::all_to_all_v(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  std::vector<std::int64_t> counts;  // from one rank to the other as many as back
  for (int r = 0; r < comm.world_size(); ++r) {
    counts.push_back(part_of(step.count, salt, rank + r));
  }
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const View in = memory_.in(step, rank, all);
  const View out = memory_.out(step, rank, all);
  std::int64_t begin = 0;
  for (int r = 0; r < comm.world_size(); ++r) {
    const std::int64_t count = counts[static_cast<std::size_t>(r)];
    sent_by(rank, step, salt).write(in.part(begin, count), r);
    begin += count;
  }
  before_call();
  comm.all_to_all_v(in, counts, out, counts);
  begin = 0;
  for (int r = 0; r < comm.world_size(); ++r) {
    const std::int64_t count = counts[static_cast<std::size_t>(r)];
    sent_by(r, step, salt).check(out.part(begin, count), part_name(r), rank);
    begin += count;
  }
}

void Steps::scan(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const View in = memory_.in(step, rank, step.count);
  Pattern::contribution(step.dtype, step.reduce.kind, salt, rank).write(in);
  const View out = step.in_place ? in : memory_.out(step, rank, step.count);
  const bool inclusive = step.op == Op::scan;
  before_call();
  if (inclusive) {
    comm.scan(in, out, step.reduce);
  } else {
    comm.exscan(in, out, step.reduce);
  }
  const int terms = inclusive ? rank + 1 : rank;
  if (terms > 0) {
    Pattern::reduced(step.dtype, step.reduce, salt, terms).check(out, "the result");
  }
}

void Steps::exchange(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const View in = memory_.in(step, rank, step.count);
  const View out = memory_.out(step, rank, step.count * comm.world_size());
  sent_by(rank, step, salt).write(in);
  std::vector<Message> messages;
  for (int r = 0; r < comm.world_size(); ++r) {
    messages.push_back(Message::send(in, r, rank));
    messages.push_back(Message::recv(out.part(r * step.count, step.count), r, r));
  }
  before_call();
  comm.exchange(messages);
  for (int r = 0; r < comm.world_size(); ++r) {
    sent_by(r, step, salt).check(out.part(r * step.count, step.count), part_name(r));
  }
}

}  // namespace tutti::test
