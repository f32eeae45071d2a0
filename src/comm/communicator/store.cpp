// The store as users have it: among the ranks of a communicator, whose failures end its waits.
#include "tutti/store.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/default_timeout.hpp"
#include "base/finally.hpp"
#include "base/fork_guard.hpp"
#include "comm/communicator/communicator_impl.hpp"
#include "comm/failure.hpp"
#include "comm/hosts/store/remote_store.hpp"
#include "comm/hosts/store/store_server.hpp"
#include "comm/key_values.hpp"
#include "comm/own_waits.hpp"
#include "comm/shm/memory/process.hpp"
#include "comm/shm/store/host_store.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {

using shm::HostStore;

namespace {

constexpr std::int64_t kMostKeyBytes = 65'536;

}  // namespace

class Store::Impl {
 public:
  explicit Impl(std::shared_ptr<Communicator::Impl> communicator)
      : communicator_(std::move(communicator)), ranks_(communicator_->transport()) {
    make_table();
    if (ranks_.local_size() != ranks_.size()) connect_hosts();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (fork_guard_.in_child()) {  // whose parent's these are, and their threads and connections
      static_cast<void>(server_.release());
      static_cast<void>(remote_.release());
    } else if (table_) {
      table_->leave();
    }
  }

  void set(std::string_view key, std::span<const std::byte> value) {
    in_call([&] { values(key).set(key, value); });
  }
  std::int64_t add(std::string_view key, std::int64_t delta) {
    return in_call([&] { return values(key).add(key, delta); });
  }
  std::vector<std::byte> get(std::string_view key, KeyValues::Take take,
                             std::optional<std::chrono::milliseconds> timeout) {
    if (timeout && timeout->count() < 0) {
      throw InvalidArgument("timeout is " + std::to_string(timeout->count()) +
                            " ms, but must not be negative");
    }
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kLongestTimeout);
    return in_call([&] {
      return values(key).get(key, take, std::min(timeout.value_or(ranks_.timeout()), limit),
                             [this] { look(); });
    });
  }

 private:
  /** Of which `key` may be one. */
  KeyValues& values(std::string_view key) {
    if (fork_guard_.in_child()) {
      throw CommunicationError(
          "the store belongs to the process that made it, not to a forked child");
    }
    if (std::ssize(key) > kMostKeyBytes) {
      throw InvalidArgument("key has " + std::to_string(key.size()) +
                            " bytes, but must have at most " + std::to_string(kMostKeyBytes));
    }
    return table_ ? static_cast<KeyValues&>(*table_) : *remote_;
  }

  /** Whoever hears by the store that a rank has died tells those that wait for something else. */
  template <class Action>
  auto in_call(const Action& action) -> decltype(action()) {
    const Finally end(&forget_wait);
    try {
      return action();
    } catch (const ProcessesEnded& ended) {
      communicator_->lose_ended(ended);
      throw;
    }
  }
  /** In a wait of a call: see forget_wait(). */
  void look() {
    InterruptCheck::poll();
    communicator_->look_after_ranks();
  }
  static void forget_wait() noexcept { OwnWaits::of_this_process().forget(); }

  /** Collective: rank 0 makes the table, the others of its host open it. */
  void make_table() {
    const int rank = ranks_.rank();
    std::array<std::byte, UniqueId::kBytes> ticket = UniqueId::create().bytes();
    run(Call::broadcast(view_of(ticket), view_of(ticket), 0));
    const std::string name = shm::segment_name(UniqueId::from_bytes(ticket), "store");
    if (!ranks_.shares_host(0)) {
      agree([] {});
      return agree([] {});
    }
    const shm::NameGuard guard(name);  // all of them remove it, so that it goes whoever dies
    agree([&] {
      if (rank == 0) table_ = HostStore::create(name, 0, ranks_.size(), ranks_.timeout());
    });
    agree([&] {
      if (rank != 0) table_ = HostStore::open(name, rank, ranks_.timeout());
    });
  }

  /** Collective: rank 0 serves the table to other hosts. */
  void connect_hosts() {
    struct Member {
      shm::ProcessId process;
      bool here = false;
    };
    const Member own{shm::ProcessId::self(), ranks_.shares_host(0)};
    std::vector<Member> members(static_cast<std::size_t>(ranks_.size()));
    constexpr std::int64_t kMember = sizeof(Member);
    run(Call::all_gather(ConstView(&own, kMember, DType::u8),
                         View(members.data(), kMember * ranks_.size(), DType::u8)));
    mpi::Endpoint endpoint;
    agree([&] {
      if (ranks_.rank() != 0) return;
      std::vector<StoreServer::Neighbour> neighbours;
      for (int rank = 1; rank < ranks_.size(); ++rank) {
        const Member& member = members[static_cast<std::size_t>(rank)];
        if (member.here) neighbours.push_back({rank, shm::ProcessWatch(member.process)});
      }
      server_ = std::make_unique<StoreServer>(*table_, std::move(neighbours));
      endpoint = server_->endpoint();
    });
    const View view(&endpoint, sizeof endpoint, DType::u8);
    run(Call::broadcast(view, view, 0));
    agree([&] {
      if (table_) return;
      remote_ = std::make_unique<RemoteStore>(endpoint, ranks_.rank(), ranks_.timeout(),
                                              [this] { look(); });
    });
  }

  /** Collective: does what may fail, which then fails on all ranks. */
  void agree(const std::function<void()>& action) {
    std::optional<SystemError> error;
    try {
      action();
    } catch (const SystemError& failure) {
      error = failure;
    } catch (const std::bad_alloc&) {
      error.emplace("cannot make a Store", ENOMEM);
    }
    const std::int32_t own = error ? error->error_number() : 0;
    std::vector<std::int32_t> all(static_cast<std::size_t>(ranks_.size()));
    run(Call::all_gather(ConstView(&own, 1, DType::i32), View(std::span(all))));
    if (error) throw SystemError(*error);
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const int number = all[static_cast<std::size_t>(rank)];
      if (number == 0) continue;
      throw SystemError("rank " + std::to_string(rank) + " could not make a Store", number);
    }
  }

  void run(const Call& call) { communicator_->run(call, {}); }
  static View view_of(std::array<std::byte, UniqueId::kBytes>& ticket) {
    return {ticket.data(), std::ssize(ticket), DType::u8};
  }

  std::shared_ptr<Communicator::Impl> communicator_;
  const Transport& ranks_;
  std::unique_ptr<HostStore> table_;     // on the host of rank 0
  std::unique_ptr<StoreServer> server_;  // of rank 0, if there are other hosts
  std::unique_ptr<RemoteStore> remote_;  // on those
  const ForkGuard fork_guard_;
};

Store::Store(const Communicator& communicator)
    : impl_(std::make_unique<Impl>(communicator.impl())) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

void Store::set(std::string_view key, std::span<const std::byte> value) { impl_->set(key, value); }

std::vector<std::byte> Store::get(std::string_view key,
                                  std::optional<std::chrono::milliseconds> timeout) {
  return impl_->get(key, KeyValues::Take::copy, timeout);
}

std::vector<std::byte> Store::pop(std::string_view key,
                                  std::optional<std::chrono::milliseconds> timeout) {
  return impl_->get(key, KeyValues::Take::remove, timeout);
}

std::int64_t Store::add(std::string_view key, std::int64_t delta) { return impl_->add(key, delta); }

}  // namespace tutti
