// Brings workers and servers of a job together.
#include "tutti/ps/fleet.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/environment.hpp"
#include "base/finally.hpp"
#include "base/fork_guard.hpp"
#include "base/launcher_line.hpp"
#include "base/log.hpp"
#include "base/memory.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"
#include "comm/communicator/options.hpp"
#include "comm/derived_ticket.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "ps/failure.hpp"
#include "ps/placement.hpp"
#include "ps/start.hpp"
#include "ps/terms.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps {
namespace {

/** What ranks of a communicator tell each other first. Plain bytes. */
struct Announcement {
  mpi::Endpoint endpoint;  ///< of a server
  std::array<char, 64> host{};
  std::int32_t failure_bytes = 0;  ///< 0: none
  std::array<char, 1024> failure{};
};

/** Cuts what is too long for `out`; returns how much of it is there. */
template <std::size_t kSize>
std::int32_t put(std::array<char, kSize>& out, const std::string& text) {
  const std::size_t bytes = std::min(text.size(), kSize);
  copy_bytes(out.data(), text.data(), static_cast<std::int64_t>(bytes));
  return static_cast<std::int32_t>(bytes);
}

std::vector<Announcement> exchange(Communicator& world, const Announcement& own) {
  constexpr std::int64_t kBytes = sizeof(Announcement);
  std::vector<Announcement> all(static_cast<std::size_t>(world.world_size()));
  world.all_gather(ConstView(&own, kBytes, DType::u8),
                   View(all.data(), kBytes * std::ssize(all), DType::u8));
  return all;
}

std::string text_of(const std::vector<std::string>& endpoints) {
  std::string text = "tutti parameter server";
  for (const std::string& endpoint : endpoints) text += "\n" + endpoint;
  return text;
}

/** Which list it is, as far as 32 bits tell; not 0. */
std::uint32_t list_of(const std::vector<std::string>& endpoints) {
  return static_cast<std::uint32_t>(hash_text(text_of(endpoints))) | 1U;
}

/** Alike in all processes that were given this list, and the same secret: without one, whoever
 * knows the list can tell it. */
mpi::Token token_of(const std::vector<std::string>& endpoints) {
  std::string text = text_of(endpoints);
  if (const auto secret = environment("TUTTI_SECRET")) text += "\nsecret " + *secret;
  const UniqueId ticket = ticket_of_text(text);
  mpi::Token token{};
  copy_bytes(token.data(), ticket.bytes().data(), std::ssize(token));
  return token;
}

mpi::Endpoint endpoint_of(const mpi::NamedEndpoint& named, const mpi::Token& token) {
  mpi::Endpoint endpoint;
  endpoint.token = token;
  endpoint.port = named.port;
  const std::size_t count = std::min(named.addresses.size(), mpi::Endpoint::kMostAddresses);
  std::copy_n(named.addresses.begin(), count, endpoint.addresses.begin());
  endpoint.address_count = static_cast<std::uint16_t>(count);
  return endpoint;
}

/** Ends a server's thread before its workers have gone. */
class Over : public std::exception {};

/** Throws what keeps one of the ranks from starting, on all of them. */
void raise_failures(const std::vector<Announcement>& all, const Placement::Impl& place) {
  const auto name_of = [&](std::size_t rank) {
    for (const auto* names : {&place.workers, &place.servers}) {
      for (const Name& name : *names) {
        if (name.rank == static_cast<int>(rank)) return name.text;
      }
    }
    return "rank " + std::to_string(rank);
  };
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto bytes = static_cast<std::size_t>(all[rank].failure_bytes);
    if (bytes == 0) continue;
    Failure::decode({all[rank].failure.data(), bytes}).at(name_of(rank)).raise();
  }
}

}  // namespace

class Fleet::Impl {
 public:
  Impl(const Placement::Impl& place, const FleetOptions& fleet);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  /** Joins the thread of the server, and throws what has ended it. */
  void close();
  std::optional<ServerStats> server_stats();
  bool is_of_parent() const { return fork_guard_.in_child(); }

  std::unique_ptr<Worker> worker;
  std::unique_ptr<Server> server;  ///< null if it runs in the thread

 private:
  /** Finds out where the servers are, and listens if this is one. Throws on all ranks of a
   * communicator what one of them cannot do. */
  std::vector<ServerAddress> introduce(const Placement::Impl& place,
                                       const std::function<void()>& prepare);
  void listen(const Placement::Impl& place);
  std::future<void> start_server_thread(const StartOptions& options);
  static void raise_own_failure(const Placement::Impl& place, std::future<void>& ready);
  /** Joins the thread of the server. */
  void leave();
  /** Another thread's server may be asked, from now on, or no longer. */
  void set_in_thread(const Server* own);

  void refuse_in_forked_child() const {
    if (!is_of_parent()) return;
    throw CommunicationError(
        "the fleet belongs to the process that made it, not to a forked child");
  }

  ForkGuard fork_guard_;
  std::optional<Listener> listener_;
  mpi::Endpoint own_endpoint_;
  std::thread serving_;
  std::future<void> served_;          // ready when that thread has nothing left to do
  std::atomic<bool> is_over_{false};  // it is to end, whoever is left
  std::mutex stats_mutex_;            // of what follows
  const Server* in_thread_ = nullptr;
  std::optional<ServerStats> last_stats_;
};

void Fleet::Impl::set_in_thread(const Server* own) {
  const std::lock_guard lock(stats_mutex_);
  if (in_thread_ != nullptr) last_stats_ = in_thread_->stats();
  in_thread_ = own;
}

std::optional<ServerStats> Fleet::Impl::server_stats() {
  refuse_in_forked_child();
  if (server) return server->stats();
  const std::lock_guard lock(stats_mutex_);
  return in_thread_ != nullptr ? in_thread_->stats() : last_stats_;
}

void Fleet::Impl::listen(const Placement::Impl& place) {
  const Name& own = place.servers[static_cast<std::size_t>(place.server)];
  if (place.world == nullptr) {
    const mpi::Token token = token_of(place.endpoints);
    listener_ =
        Listener{mpi::listen_at(place.resolved.front()), token, own, list_of(place.endpoints)};
    return;
  }
  std::uint16_t port = 0;
  mpi::Socket socket = mpi::listen_anywhere(port);
  own_endpoint_ = mpi::Endpoint::at(port);
  listener_ = Listener{std::move(socket), own_endpoint_.token, own};
}

std::vector<ServerAddress> Fleet::Impl::introduce(const Placement::Impl& place,
                                                  const std::function<void()>& prepare) {
  std::exception_ptr own_failure;
  try {
    prepare();
    if (place.server >= 0) listen(place);
  } catch (...) {
    own_failure = std::current_exception();
  }
  std::vector<ServerAddress> addresses;
  if (place.world == nullptr) {
    if (own_failure) std::rethrow_exception(own_failure);
    if (place.worker < 0) return addresses;
    const mpi::Token token = token_of(place.endpoints);
    for (std::size_t i = 0; i < place.servers.size(); ++i) {
      const mpi::NamedEndpoint& named = place.resolved[i];
      addresses.push_back(
          {place.servers[i], named.text, endpoint_of(named, token), list_of(place.endpoints)});
    }
    return addresses;
  }

  Announcement own{.endpoint = own_endpoint_};
  put(own.host, host_name());
  if (own_failure) {
    own.failure_bytes = put(own.failure, Failure::of(own_failure).encode());
  }
  const std::vector<Announcement> all = exchange(*place.world, own);
  if (own_failure) std::rethrow_exception(own_failure);
  raise_failures(all, place);
  for (const Name& one : place.servers) {
    const Announcement& theirs = all[static_cast<std::size_t>(one.rank)];
    const std::string host(theirs.host.data(), ::strnlen(theirs.host.data(), theirs.host.size()));
    addresses.push_back({one, host, theirs.endpoint});
  }
  return addresses;
}

/** The server of this process, in its thread: ready once it has started, or cannot. */
std::future<void> Fleet::Impl::start_server_thread(const StartOptions& options) {
  std::promise<void> started;
  std::future<void> ready = started.get_future();
  std::packaged_task<void()> serve(
      [this, &options, listener = std::move(*listener_), started = std::move(started)]() mutable {
        const InterruptCheck check([this] {
          if (is_over_) throw Over();
        });
        std::unique_ptr<Server> own;
        try {
          own = start_server(options, std::move(listener));
          set_in_thread(own.get());
          started.set_value();
        } catch (...) {
          started.set_exception(std::current_exception());
          return;
        }
        const Finally gone([this] { set_in_thread(nullptr); });
        try {
          own->run();
        } catch (const Over&) {  // its workers are told when its sockets are closed
        } catch (const std::exception& error) {
          log(LogLevel::error, "server " + std::to_string(own->index()) + ": " + error.what());
          throw;
        }
      });
  served_ = serve.get_future();
  serving_ = start_thread("a server", std::move(serve));
  return ready;
}

/** A worker may have heard no more than that the server of its own process has gone: throws why, if
 * that is more. */
void Fleet::Impl::raise_own_failure(const Placement::Impl& place, std::future<void>& ready) {
  if (!ready.valid()) return;
  try {
    ready.get();
  } catch (const PeerLost&) {
  } catch (...) {
    const std::string& name = place.servers[static_cast<std::size_t>(place.server)].text;
    Failure::of(std::current_exception()).at(name).raise();
  }
}

Fleet::Impl::Impl(const Placement::Impl& place, const FleetOptions& fleet) {
  std::optional<StartOptions> options;
  const std::vector<ServerAddress> addresses = introduce(place, [&] {
    check(fleet);
    const auto timeout = checked_timeout(fleet.timeout);
    DenseLayout layout =
        lay_out(fleet.dense, static_cast<int>(place.servers.size()), fleet.slicing);
    Terms terms = terms_of(fleet, place, layout);
    RowFormat format{.dims = {}, .wire = fleet.wire};
    for (const TableSpec& table : fleet.tables) format.dims.push_back(table.dim);
    options.emplace(
        StartOptions{fleet, place, std::move(layout), std::move(terms), std::move(format), timeout,
                     place.serves_in_a_thread ? std::make_shared<ServerPlace>() : nullptr});
  });
  if (place.worker < 0) {
    // First: workers that have little to do may have ended before this has heard of their start.
    tell_launcher(kEndsByItself);
    server = start_server(*options, std::move(*listener_));
    return;
  }
  std::future<void> ready;
  if (place.serves_in_a_thread) ready = start_server_thread(*options);
  try {
    worker = start_worker(*options, addresses);
    if (ready.valid()) ready.get();
  } catch (const PeerLost&) {
    leave();
    raise_own_failure(place, ready);
    throw;
  } catch (const Error&) {
    leave();
    throw;
  } catch (...) {  // the caller is interrupted, and waits for nobody any more
    is_over_ = true;
    leave();
    throw;
  }
}

Fleet::Impl::~Impl() {
  try {
    leave();
  } catch (...) {  // the caller is interrupted, and destroys what it has
  }
}

void Fleet::Impl::close() {
  refuse_in_forked_child();
  leave();
  if (served_.valid()) served_.get();
}

void Fleet::Impl::leave() {
  worker.reset();
  if (!serving_.joinable()) return;
  try {
    while (served_.wait_for(InterruptCheck::kInterval) != std::future_status::ready) {
      InterruptCheck::poll();
    }
  } catch (...) {
    is_over_ = true;
    serving_.join();
    throw;
  }
  serving_.join();
}

Fleet::Fleet(const Placement& placement, const FleetOptions& options)
    : impl_(std::make_unique<Impl>(placement.impl(), options)) {}
Fleet::Fleet(Fleet&&) noexcept = default;
Fleet& Fleet::operator=(Fleet&& other) noexcept {
  Fleet before(std::move(other));
  impl_.swap(before.impl_);  // what this one had ends as any does
  return *this;
}
Fleet::~Fleet() {
  // A forked child has its parent's connections, and not its threads: nothing of that may end here.
  if (impl_ && impl_->is_of_parent()) static_cast<void>(impl_.release());
}
void Fleet::close() { impl_->close(); }

bool Fleet::is_worker() const { return impl_->worker != nullptr; }
bool Fleet::is_server() const { return impl_->server != nullptr; }

Worker& Fleet::worker() {
  if (!impl_->worker) refuse("this process is a server, and has no worker");
  return *impl_->worker;
}

Server& Fleet::server() {
  if (!impl_->server) refuse("this process has no server that is to run: it is a worker");
  return *impl_->server;
}

std::optional<ServerStats> Fleet::server_stats() const { return impl_->server_stats(); }

}  // namespace tutti::ps
