// Symmetric allocations and sub-communicators of the shared-memory transport.
#include <algorithm>
#include <cerrno>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "comm/shm/available_memory.hpp"
#include "comm/shm/transport.hpp"
#include "comm/split.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

/** What `action` fails with, to be told to the other ranks. */
template <class Action>
std::optional<SystemError> system_error_of(const Action& action) {
  try {
    action();
    return std::nullopt;
  } catch (const SystemError& error) {
    return error;
  }
}

std::int32_t number_of(const std::optional<SystemError>& error) {
  return error ? error->error_number() : 0;
}

/** What rank 0 tells the others about an allocation before they take part in it. */
struct Opening {
  AvailableMemory available;
  std::int32_t error = 0;
};

}  // namespace

Buffer ShmTransport::allocate(std::int64_t bytes) {
  begin_checked(Call::allocate(bytes));
  const std::int64_t page = page_size();
  const std::int64_t stride = (bytes + page - 1) / page * page;

  // All ranks know the name and remove it, so that it goes whoever dies meanwhile.
  const UniqueId ticket = UniqueId::from_bytes(host_.control().header().ticket);
  const std::string name = segment_name(ticket, "allocation " + std::to_string(sequence_));
  const NameGuard guard(name);
  Segment segment;
  std::optional<SystemError> error;
  Opening opening;
  if (rank() == 0) {
    error = system_error_of([&] {
      opening.available = available_memory();
      if (!opening.available.fits(stride, size())) return;
      segment = Segment::create(name);
      segment.resize(std::max(stride * size(), page));
    });
    opening.error = number_of(error);
  }
  const View board(&opening, sizeof(opening), DType::u8);
  broadcast(Call::broadcast(board, board, 0));
  // More than the machine has would not end in an error, but with the kernel killing a rank.
  if (opening.error == 0 && !opening.available.fits(stride, size())) {
    throw SystemError("cannot reserve " + std::to_string(bytes) +
                          " bytes of shared memory on each of " + std::to_string(size()) +
                          " ranks: " + opening.available.describe(),
                      ENOMEM);
  }

  // Each rank reserves its own part, so that the memory is near its processor.
  Allocation allocation;
  if (opening.error == 0) {
    error = system_error_of([&] {
      if (rank() != 0) segment = Segment::open(name);
      if (!segment) throw SystemError("cannot find the memory that rank 0 allocated", ENOENT);
      segment.reserve(rank() * stride, stride);
      allocation.mapping = segment.map();
      if (stride > 0) allocation.copy = segment.map_copy(rank() * stride, stride);
    });
  } else if (rank() != 0) {
    error = SystemError("rank 0 could not allocate symmetric memory", opening.error);
  }
  std::vector<std::int32_t> errors(static_cast<std::size_t>(size()));
  const std::int32_t own = number_of(error);
  run(Call::all_gather(ConstView(&own, 1, DType::i32), View(errors.data(), size(), DType::i32)));

  if (error) throw SystemError(*error);
  for (int peer = 0; peer < size(); ++peer) {
    if (const int number = errors[static_cast<std::size_t>(peer)]; number != 0) {
      throw SystemError("rank " + std::to_string(host_.name_of(peer)) + " could not allocate " +
                            std::to_string(bytes) + " bytes of symmetric memory",
                        number);
    }
  }
  return symmetric_.add(std::move(allocation), stride, bytes);
}

void ShmTransport::pulse(std::chrono::milliseconds waited) {
  host_.look_after_all();
  if (waited >= host_.timeout() && size() > 1) host_.overdue();
}

std::unique_ptr<Transport> ShmTransport::split(int color, int key) {
  begin_checked(Call::split());
  const SplitPlan plan = plan_split(*this, color, key, UniqueId::create());
  if (color < 0) return nullptr;
  std::vector<int> names(plan.members.size());
  std::iota(names.begin(), names.end(), 0);
  const Host::Elsewhere elsewhere(host_, Wait::collective);
  try {
    auto part =
        std::make_unique<ShmTransport>(plan.tickets.front(), plan.rank, std::move(names),
                                       host_.timeout(), host_.participants_of(plan.members));
    if (const Host::Idle& idle = host_.idle_function()) {
      part->host().set_idle([idle, members = plan.members](std::span<const int> missing) {
        RecycledVector<int> ranks;
        for (const int rank : missing) ranks.push_back(members[static_cast<std::size_t>(rank)]);
        idle(ranks);
      });
    }
    return part;
  } catch (const PeerLost& error) {
    host_.fail_lost(error.ranks(), error.reason());
    throw;
  } catch (const std::exception& error) {  // the others would wait for this rank
    abort(error.what());
    throw;
  }
}

}  // namespace tutti::shm
