// One function for each kind of call.
#include "rig/steps.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rig/oracle.hpp"
#include "rig/saboteur.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

constexpr std::int64_t kStagger = 64;  // bytes by which places differ from rank to rank
constexpr unsigned char kNothing = 0xEE;

void clear(const View& view) {
  if (view.count > 0) std::memset(view.data, kNothing, static_cast<std::size_t>(view.bytes()));
}

/** Which elements `rank` contributes to a sparse sum, as every rank knows. */
bool contributes(std::int64_t i, std::uint64_t salt, int rank) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(i) + salt) * 0x9E3779B97F4A7C15U;
  return (mixed >> 60U) == 0 || (mixed >> 33U) % 50 == static_cast<std::uint64_t>(rank);
}

}  // namespace

std::int64_t Steps::part_of(std::int64_t count, std::uint64_t salt, int rank) {
  const auto step = static_cast<std::uint64_t>(rank) + salt;
  return step % 3 == 0 ? 0 : step % 3 == 1 ? count : count / 2;
}

Workspace::Workspace(const Trial& trial) : half_(0) {
  for (std::size_t i = 0; i < trial.program.size(); ++i) {
    const Step& step = trial.program[i];
    if (step.op == Op::allocate) continue;
    const Step other = mistaken(step, trial.seed, trial.ranks);
    for (const Step& each : {step, other}) {
      half_ = std::max(half_, each.elements(trial.ranks) * size_of(each.dtype));
    }
  }
  half_ = (half_ / kStagger + 2 + kMostRanks) * kStagger;
  ordinary_.resize(static_cast<std::size_t>(2 * half_));
}

void Workspace::add(Communicator* group) {
  symmetric_.push_back(group == nullptr ? Buffer() : group->allocate(2 * half_));
}

View Workspace::at(const Step& step, int rank, std::int64_t count, bool second) {
  std::byte* base = ordinary_.data();
  std::int64_t offset = second ? half_ : 0;
  if (step.place == Place::ordinary) {
    offset += size_of(step.dtype);
  } else {
    base = static_cast<std::byte*>(symmetric_[static_cast<std::size_t>(step.group)].data());
    if (step.place == Place::staggered) offset += kStagger * rank;
  }
  const View view(base + offset, count, step.dtype);
  clear(view);
  return view;
}

void Workspace::fill(unsigned char value) {
  std::fill(ordinary_.begin(), ordinary_.end(), std::byte{value});
  for (const Buffer& buffer : symmetric_) {
    std::fill_n(static_cast<std::byte*>(buffer.data()), buffer.bytes(), std::byte{value});
  }
}

std::string Workspace::changed(unsigned char value) const {
  const auto count = [value](const std::byte* data, std::int64_t bytes) {
    return bytes - std::count(data, data + bytes, std::byte{value});
  };
  std::string text;
  if (const auto n = count(ordinary_.data(), 2 * half_); n > 0) {
    text += std::to_string(n) + " bytes of its own memory were overwritten; ";
  }
  for (const Buffer& buffer : symmetric_) {
    const auto n = count(static_cast<const std::byte*>(buffer.data()), buffer.bytes());
    if (n > 0) text += std::to_string(n) + " bytes of its symmetric memory were overwritten; ";
  }
  return text;
}

Steps::Steps(const Trial& trial, const std::shared_ptr<Communicator>& world,
             std::vector<int>& members)
    : trial_(trial), members_(members), groups_(split_all(world)), memory_(trial) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    members_ = trial.members(static_cast<int>(group), world->global_rank());
    memory_.add(groups_[group].get());
  }
  members_ = trial.members(0, world->global_rank());
  const auto has = [&](Op op) {
    return std::any_of(trial.program.begin(), trial.program.end(),
                       [op](const Step& step) { return step.op == op; });
  };
  if (has(Op::train)) training_.emplace(trial, world);
  if (has(Op::ring)) sending_ = Stream::worker();
}

std::vector<std::shared_ptr<Communicator>> Steps::split_all(
    const std::shared_ptr<Communicator>& world) {
  std::vector<std::shared_ptr<Communicator>> groups{world};
  const auto rank = static_cast<std::size_t>(world->global_rank());
  members_ = trial_.members(0, world->global_rank());
  for (const Split& split : trial_.splits) {
    auto part = world->split(split.colors[rank], split.keys[rank]);
    groups.push_back(part ? std::make_shared<Communicator>(std::move(*part)) : nullptr);
  }
  return groups;
}

void Steps::leave() {
  training_.reset();
  groups_.clear();
}

void Steps::interrupt_training(bool yes) {
  if (!training_) return;
  training_->interruption = yes ? [] { throw Sabotage(); } : std::function<void()>();
}

void Steps::run(const Step& step, std::uint64_t number) {
  const auto& comm = groups_[static_cast<std::size_t>(step.group)];
  if (!comm) return;
  members_ = trial_.members(step.group, groups_.front()->global_rank());
  switch (step.op) {
    case Op::all_reduce:
    case Op::reduce:
      reduction(*comm, step, number);
      break;
    case Op::broadcast:
      broadcast(*comm, step, number);
      break;
    case Op::all_gather:
    case Op::all_gather_v:
      gather(*comm, step, number);
      break;
    case Op::reduce_scatter:
      scatter(*comm, step, number);
      break;
    case Op::all_to_all:
      all_to_all(*comm, step, number);
      break;
    case Op::gather:
    case Op::gather_v:
    case Op::scatter:
    case Op::scatter_v:
      to_or_from_root(*comm, step, number);
      break;
    case Op::reduce_scatter_v:
      scatter_v(*comm, step, number);
      break;
    case Op::all_to_all_v:
      all_to_all_v(*comm, step, number);
      break;
    case Op::scan:
    case Op::exscan:
      scan(*comm, step, number);
      break;
    case Op::exchange:
      exchange(*comm, step, number);
      break;
    case Op::sparse_all_reduce:
      sparse(*comm, step, number);
      break;
    case Op::ring:
      ring(*comm, step, number);
      break;
    case Op::train:
      before_call();
      training_->step(step.mode, number);
      break;
    case Op::split:
      split(*comm);
      break;
    case Op::allocate:
      allocate(*comm, step);
      break;
    case Op::barrier:
      before_call();
      comm->barrier();
      break;
  }
  ++results_;
}

void Steps::reduction(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const auto own = Pattern::contribution(step.dtype, step.reduce.kind, salt, rank);
  const View in = memory_.in(step, rank, step.count);
  own.write(in);
  const View out = step.in_place ? in : memory_.out(step, rank, step.count);
  const bool everywhere = step.op == Op::all_reduce;
  before_call();
  if (everywhere) {
    comm.all_reduce(in, out, step.reduce);
  } else {
    comm.reduce(in, out, step.root, step.reduce);
  }
  if (!step.in_place) own.check(in, "the input");
  if (everywhere || rank == step.root) {
    Pattern::reduced(step.dtype, step.reduce, salt, comm.world_size()).check(out, "the result");
  }
}

void Steps::broadcast(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const auto sent = Pattern::contribution(step.dtype, ReduceKind::sum, salt, step.root);
  const View in = memory_.in(step, rank, step.count);
  if (rank == step.root) sent.write(in);
  const View out = step.in_place ? in : memory_.out(step, rank, step.count);
  before_call();
  comm.broadcast(in, out, step.root);
  sent.check(out, "the result");
}

void Steps::gather(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const bool uneven = step.op == Op::all_gather_v;
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> starts{0};
  for (int r = 0; r < comm.world_size(); ++r) {
    counts.push_back(uneven ? part_of(step.count, salt, r) : step.count);
    starts.push_back(starts.back() + counts.back());
  }
  const auto mine = static_cast<std::size_t>(rank);
  const View out = memory_.out(step, rank, starts.back());
  const View in =
      step.in_place ? out.part(starts[mine], counts[mine]) : memory_.in(step, rank, counts[mine]);
  Pattern::contribution(step.dtype, ReduceKind::sum, salt, rank).write(in);
  before_call();
  if (uneven) {
    comm.all_gather_v(in, out, counts);
  } else {
    comm.all_gather(in, out);
  }
  for (std::size_t r = 0; r < counts.size(); ++r) {
    Pattern::contribution(step.dtype, ReduceKind::sum, salt, static_cast<int>(r))
        .check(out.part(starts[r], counts[r]), "the part of rank " + std::to_string(r));
  }
}

void Steps::scatter(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const View in = memory_.in(step, rank, step.count * comm.world_size());
  Pattern::contribution(step.dtype, step.reduce.kind, salt, rank).write(in);
  const View out =
      step.in_place ? in.part(rank * step.count, step.count) : memory_.out(step, rank, step.count);
  before_call();
  comm.reduce_scatter(in, out, step.reduce);
  Pattern::reduced(step.dtype, step.reduce, salt, comm.world_size())
      .check(out, "the result", rank * step.count);
}

void Steps::all_to_all(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int rank = comm.global_rank();
  const View in = memory_.in(step, rank, step.count * comm.world_size());
  Pattern::contribution(step.dtype, ReduceKind::sum, salt, rank).write(in);
  const View out = memory_.out(step, rank, in.count);
  before_call();
  comm.all_to_all(in, out);
  for (int r = 0; r < comm.world_size(); ++r) {
    Pattern::contribution(step.dtype, ReduceKind::sum, salt, r)
        .check(out.part(r * step.count, step.count), "the part of rank " + std::to_string(r),
               rank * step.count);
  }
}

void Steps::sparse(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int ranks = comm.world_size();
  const auto value = [&](std::int64_t i, int rank) {
    return static_cast<float>((i + rank + static_cast<std::int64_t>(salt)) % 7 - 3);
  };
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  for (std::int64_t i = 0; i < step.count; ++i) {
    if (!contributes(i, salt, comm.global_rank())) continue;
    indices.push_back(static_cast<std::uint32_t>(i));
    values.push_back(value(i, comm.global_rank()));
  }
  const View out = memory_.out(step, comm.global_rank(), step.count);
  before_call();
  comm.sparse_all_reduce({indices.data(), values.data(), std::ssize(indices)}, out);
  const auto* sums = static_cast<const float*>(out.data);
  for (std::int64_t i = 0; i < step.count; ++i) {
    float expected = 0;
    for (int r = 0; r < ranks; ++r) {
      if (contributes(i, salt, r)) expected += value(i, r);
    }
    if (sums[i] != expected) {
      throw WrongResult("element " + std::to_string(i) + " of " + std::to_string(step.count) +
                        " is " + std::to_string(sums[i]) + " instead of " +
                        std::to_string(expected));
    }
  }
}

void Steps::ring(Communicator& comm, const Step& step, std::uint64_t salt) {
  const int size = comm.world_size();
  if (size == 1) return;
  const int rank = comm.global_rank();
  const int source = (rank + size - 1) % size;
  const View in = memory_.in(step, rank, step.count);
  const View out = memory_.out(step, rank, step.count);
  Pattern::contribution(step.dtype, ReduceKind::sum, salt, rank).write(in);
  before_call();
  const Event sent = comm.send(in, (rank + 1) % size, 0, *sending_);
  try {
    comm.recv(out, source);
  } catch (const CommunicationError&) {
    sent.wait();  // whoever found out first, this throws PeerLost as well
    throw;
  }
  sent.wait();
  Pattern::contribution(step.dtype, ReduceKind::sum, salt, source).check(out, "what was received");
}

void Steps::split(Communicator& comm) {
  const int rank = comm.global_rank();
  before_call();
  auto part = comm.split(rank % 2, -rank);
  const int members = (comm.world_size() + 1 - rank % 2) / 2;
  if (part->world_size() != members || part->global_rank() != members - 1 - rank / 2) {
    throw WrongResult("it became rank " + std::to_string(part->global_rank()) + " of " +
                      std::to_string(part->world_size()));
  }
  std::erase_if(members_, [rank](int other) { return other % 2 != rank % 2; });
  std::reverse(members_.begin(), members_.end());
  part->barrier();
}

void Steps::allocate(Communicator& comm, const Step& step) {
  before_call();
  const Buffer buffer = comm.allocate(step.count * size_of(step.dtype));
  const auto bytes = buffer.as<std::uint8_t>();
  if (std::any_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte != 0; })) {
    throw WrongResult("new memory is not zero");
  }
}

}  // namespace tutti::test
