// Symmetric allocations: the ranks of a host make one together, or none.
#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "base/available_memory.hpp"
#include "base/page_size.hpp"
#include "comm/shm/local.hpp"
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

Buffer Local::allocate(std::int64_t bytes) {
  const std::int64_t page = page_size();
  const std::int64_t stride = (bytes + page - 1) / page * page;

  // All ranks know the name and remove it, so that it goes whoever dies meanwhile.
  const UniqueId ticket = UniqueId::from_bytes(group_.control().header().ticket);
  const std::string name = segment_name(ticket, "allocation " + std::to_string(meetings_));
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
  run(Task::spread(board, board, 0));
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
  run(Task::all_gather(ConstView(&own, 1, DType::i32), View(errors.data(), size(), DType::i32)));

  if (error) throw SystemError(*error);
  for (int peer = 0; peer < size(); ++peer) {
    if (const int number = errors[static_cast<std::size_t>(peer)]; number != 0) {
      throw SystemError("rank " + std::to_string(group_.name_of(peer)) + " could not allocate " +
                            std::to_string(bytes) + " bytes of symmetric memory",
                        number);
    }
  }
  return symmetric_.add(std::move(allocation), stride, bytes);
}

}  // namespace tutti::shm
