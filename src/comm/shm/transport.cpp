// Calls become tasks of the ranks of a host, once these have compared them.
#include "comm/shm/transport.hpp"

#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "comm/blocks.hpp"
#include "comm/sparse/sum.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {

std::string ShmTransport::describe() const {
  return "shared memory among " + std::to_string(size()) + " ranks of one host";
}

void ShmTransport::abort(std::string_view reason) noexcept {
  const int name = local_->group().name_of(rank());
  local_->group().fail_lost(std::span(&name, 1), reason);
}

void ShmTransport::pulse(std::chrono::milliseconds waited) {
  LocalGroup& group = local_->group();
  group.look_after_all();
  if (waited >= group.timeout() && size() > 1) group.overdue();
}

void ShmTransport::look_after_present() { local_->group().look_after_present(); }

void ShmTransport::lose_ended(const PeerLost& ended) {
  LocalGroup& group = local_->group();
  const int rank = ended.ranks().front();
  if (!group.has_left(rank)) group.lose(rank, ended.reason(), Ended::yes);
}

// --- Calls --------------------------------------------------------------------------------------

Task ShmTransport::task_of(const Call& call) const {
  switch (call.operation) {
    case Operation::all_reduce:
      return Task::all_reduce(call.in, call.out, combine_of(call.reduction, size()));
    case Operation::reduce:
      return Task::reduce(call.in, call.out, combine_of(call.reduction, size()), call.root);
    case Operation::broadcast:
      return Task::spread(call.in, call.out, call.root);
    case Operation::all_gather:
      return Task::all_gather(call.in, call.out);
    case Operation::all_gather_v:
      return Task::all_gather(call.in, call.out, call.counts);
    case Operation::reduce_scatter:
      return Task::reduce_scatter(call.in, call.out, combine_of(call.reduction, size()));
    case Operation::all_to_all:
      return Task::all_to_all(call.in, call.out, size());
    case Operation::barrier:
      return Task::meet();
    default:
      throw Error(std::string(name_of(call.operation)) + " is no task of the ranks of a host");
  }
}

void ShmTransport::run(const Call& call) {
  switch (call.operation) {
    case Operation::reduce_scatter_v:
      return reduce_scatter_v(call);
    case Operation::scan:
    case Operation::exscan:
      agree(call);
      return scan_gathered(*this, call);
    case Operation::gather:
    case Operation::gather_v:
    case Operation::scatter:
    case Operation::scatter_v:
    case Operation::all_to_all_v:
      return exchange_blocks(call);
    case Operation::send:
    case Operation::recv:
    case Operation::exchange:
      return message(call);
    case Operation::sparse_all_reduce:
      return sparse_all_reduce(call);
    default:
      break;
  }
  const Task task = task_of(call);
  agree(task, call);
  local_->move(task);
}

void ShmTransport::agree(const Task& task, const Call& call) {
  Signature signature = Signature::of(call);
  signature.sequence = ++sequence_;
  signatures_.begin(signature);
  if (signatures_.meet(task)) return;
  const std::string text = describe_mismatch(signatures_.differing());
  local_->group().fail_mismatch(text);
  throw MismatchError(text);
}

void ShmTransport::sparse_all_reduce(const Call& call) {
  agree(call);
  const std::int64_t divisor = combine_of(call.reduction, size()).divisor;
  auto* const sums = static_cast<float*>(call.out.data);
  SparseStats stats;
  const auto take = [&](std::int64_t begin, std::int64_t end, std::span<const SparseView> parts) {
    sparse_cursors_.clear();
    for (const SparseView& part : parts) sparse_cursors_.emplace_back(part);
    stats.entries += sum_dense(std::span(sparse_cursors_), sums, begin, end, divisor);
  };
  // A copy of `take` would need new memory.
  local_->merge_sparse(call.entries, call.count, std::ref(take));
  stats.bytes_sent = local_->bytes_lent(call.entries);
  stats.density = density_of(stats.entries, call.count);
  if (call.stats != nullptr) *call.stats = stats;
}

void ShmTransport::message(const Call& call) {
  Transfers transfers(call, rank(), messages_,
                      [this](int peer) {
                        return Transfers::Route{&mail_, peer};
                      },
                      {&mail_});
  try {
    mail_.finish(transfers, transfers.receives() ? Wait::recv : Wait::send);
  } catch (const MismatchError& error) {  // which two ranks have seen
    local_->group().fail_mismatch(error.what());
    throw;
  } catch (const PeerLost&) {
    throw;
  } catch (const CommunicationError& error) {  // found by this rank alone
    abort(error.what());
    throw;
  }
}

Buffer ShmTransport::allocate(std::int64_t bytes) {
  agree(Call::allocate(bytes));
  return local_->allocate(bytes);
}

std::unique_ptr<Transport> ShmTransport::split(int color, int key) {
  agree(Call::split());
  ScratchPool scratch(&ScratchPool::drop);
  const PartPlan plan = plan_split(*this, scratch, color, key);
  return color < 0 ? nullptr : form_part(plan);
}

std::unique_ptr<Transport> ShmTransport::group(std::span<const int> ranks) {
  ScratchPool scratch(&ScratchPool::drop);
  try {
    return form_part(plan_group(*this, scratch, ranks));
  } catch (const MismatchError& error) {
    local_->group().fail_mismatch(error.what());
    throw;
  }
}

std::unique_ptr<Transport> ShmTransport::form_part(const PartPlan& plan) {
  std::vector<int> names(plan.members.size());
  std::iota(names.begin(), names.end(), 0);
  LocalGroup& group = local_->group();
  try {
    auto part = std::make_unique<Local>(plan.tickets.front(), plan.rank, std::move(names),
                                        group.timeout(), group.participants_of(plan.members));
    return std::make_unique<ShmTransport>(std::move(part));
  } catch (const PeerLost& error) {
    group.fail_lost(error.ranks(), error.reason());
    throw;
  } catch (const std::exception& error) {  // the others would wait for this rank
    abort(error.what());
    throw;
  }
}

}  // namespace tutti::shm
