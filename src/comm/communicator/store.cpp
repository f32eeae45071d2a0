// The store as users have it: among the ranks of a communicator, whose failures end its waits.
#include "tutti/store.hpp"

#include <array>
#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/finally.hpp"
#include "base/fork_guard.hpp"
#include "comm/communicator/communicator_impl.hpp"
#include "comm/own_waits.hpp"
#include "comm/shm/store/host_store.hpp"
#include "tutti/error.hpp"

namespace tutti {

using shm::HostStore;

class Store::Impl {
 public:
  explicit Impl(std::shared_ptr<Communicator::Impl> communicator)
      : communicator_(std::move(communicator)), table_(connect()) {}

  HostStore& table() {
    if (fork_guard_.in_child()) {
      throw CommunicationError(
          "the store belongs to the process that made it, not to a forked child");
    }
    return table_;
  }

  std::vector<std::byte> get(std::string_view key, HostStore::Take take,
                             std::optional<std::chrono::milliseconds> timeout) {
    if (timeout && timeout->count() < 0) {
      throw InvalidArgument("timeout is " + std::to_string(timeout->count()) +
                            " ms, but must not be negative");
    }
    const auto look = [this] { communicator_->look_after_ranks(); };
    const Finally end([] { OwnWaits::of_this_process().forget(); });
    return table().get(key, take, timeout.value_or(communicator_->transport().timeout()), look);
  }

 private:
  /** Collective: rank 0 makes the table, the others open it. */
  HostStore connect() {
    const Transport& ranks = communicator_->transport();
    if (ranks.local_size() != ranks.size()) {
      throw BackendUnavailable("a Store is among ranks of one host, but these are on several");
    }
    std::array<std::byte, UniqueId::kBytes> ticket = UniqueId::create().bytes();
    run(Call::broadcast(bytes_of(ticket), bytes_of(ticket), 0));
    const std::string name = shm::segment_name(UniqueId::from_bytes(ticket), "store");
    const shm::NameGuard guard(
        name);  // all ranks remove it, so that it goes whoever dies meanwhile
    std::optional<HostStore> table;
    agree([&] {
      if (ranks.rank() == 0) table.emplace(HostStore::create(name, 0, ranks.timeout()));
    });
    agree([&] {
      if (!table) table.emplace(HostStore::open(name, ranks.rank(), ranks.timeout()));
    });
    return std::move(*table);
  }

  /** Collective: does what may fail, which then fails on all ranks. */
  void agree(const std::function<void()>& action) {
    std::optional<SystemError> error;
    try {
      action();
    } catch (const SystemError& failure) {
      error = failure;
    }
    const Transport& ranks = communicator_->transport();
    const std::int32_t own = error ? error->error_number() : 0;
    std::vector<std::int32_t> all(static_cast<std::size_t>(ranks.size()));
    run(Call::all_gather(ConstView(&own, 1, DType::i32), View(std::span(all))));
    if (error) throw SystemError(*error);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const int number = all[static_cast<std::size_t>(rank)];
      if (number == 0) continue;
      throw SystemError("rank " + std::to_string(rank) + " could not make a Store", number);
    }
  }

  void run(const Call& call) { communicator_->run(call, {}); }
  static View bytes_of(std::array<std::byte, UniqueId::kBytes>& ticket) {
    return {ticket.data(), std::ssize(ticket), DType::u8};
  }

  std::shared_ptr<Communicator::Impl> communicator_;
  HostStore table_;
  const ForkGuard fork_guard_;
};

Store::Store(const Communicator& communicator)
    : impl_(std::make_unique<Impl>(communicator.impl_)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

void Store::set(std::string_view key, std::span<const std::byte> value) {
  impl_->table().set(key, value);
}

std::vector<std::byte> Store::get(std::string_view key,
                                  std::optional<std::chrono::milliseconds> timeout) {
  return impl_->get(key, HostStore::Take::copy, timeout);
}

std::vector<std::byte> Store::pop(std::string_view key,
                                  std::optional<std::chrono::milliseconds> timeout) {
  return impl_->get(key, HostStore::Take::remove, timeout);
}

std::int64_t Store::add(std::string_view key, std::int64_t delta) {
  return impl_->table().add(key, delta);
}

}  // namespace tutti
