// What the threads of the server do.
#include "comm/hosts/store/store_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/waiter.hpp"
#include "comm/failure.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kForAHello{5000};
constexpr std::chrono::milliseconds kForADescriptor{50};
constexpr std::chrono::milliseconds kForAStranger{50};
// So late a rank may say hello where strangers have all places, as it may be kept from running.
constexpr std::chrono::milliseconds kForAHelloWhereFull{100};
constexpr std::chrono::milliseconds kForAWord{1000};
constexpr std::chrono::milliseconds kBetweenLooksAtSockets{10};
constexpr std::ptrdiff_t kMostStrangers = 64;
constexpr std::int64_t kHello = sizeof(StoreHello);
constexpr const char* kFor = "a Store's server";

/** Ends what a thread does for a connection that has ended, or is to. */
struct ConnectionOver {
  bool within_request = false;  // of which a part has come
};
/** Ends a wait that its rank has given up: it has asked for the next thing. */
struct GivenUp {};

StoreReply reply_of(const std::exception& error) {
  using Status = StoreReply::Status;
  if (const auto* lost = dynamic_cast<const PeerLost*>(&error)) {
    const Status status = ended_of(*lost) == Ended::yes ? Status::ended : Status::lost;
    return {status, 0, lost->ranks().empty() ? 0 : lost->ranks().front()};
  }
  if (const auto* system = dynamic_cast<const SystemError*>(&error)) {
    return {Status::system, 0, system->error_number()};
  }
  if (dynamic_cast<const DeadlineExceeded*>(&error) != nullptr) return {Status::deadline};
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return {Status::refused};
  return {Status::failed};
}

std::string text_of(const std::exception& error) {
  if (const auto* lost = dynamic_cast<const PeerLost*>(&error)) return lost->reason();
  if (const auto* system = dynamic_cast<const SystemError*>(&error)) {
    return text_before_number(*system);
  }
  return error.what();
}

}  // namespace

StoreServer::StoreServer(shm::HostStore& table, std::vector<Neighbour> neighbours)
    : table_(table), neighbours_(std::move(neighbours)) {
  std::uint16_t port = 0;
  listener_ = mpi::listen_anywhere(port);
  endpoint_ = mpi::Endpoint::at(port);
  stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_) throw SystemError("cannot make a descriptor for a Store's server", errno);
  acceptor_ = start_thread(kFor, [this] { accept(); });
}

StoreServer::~StoreServer() {
  ::eventfd_write(stop_.get(), 1);
  acceptor_.join();
  for (Connection& connection : connections_) connection.thread.join();
}

void StoreServer::accept() {
  for (;;) {
    remove_ended();
    const bool full =
        std::count_if(connections_.begin(), connections_.end(), [](const Connection& one) {
          return one.caller != Caller::known;
        }) >= kMostStrangers;
    std::array<pollfd, 2> entries{pollfd{full ? -1 : listener_.get(), POLLIN, 0},
                                  pollfd{stop_.get(), POLLIN, 0}};
    ::poll(entries.data(), entries.size(), full ? static_cast<int>(kForAStranger.count()) : -1);
    if (entries[1].revents != 0) return;
    if (full) {
      turn_silent_away();
      continue;
    }
    mpi::Socket called = mpi::accept_from(listener_);
    if (!called) {
      note_refusal(errno);
      std::this_thread::sleep_for(kForADescriptor);
      continue;
    }
    const auto socket = std::make_shared<mpi::Socket>(std::move(called));
    Connection& connection = connections_.emplace_back();
    connection.socket = socket;
    try {
      connection.thread = start_thread(kFor, [this, socket, &connection] {
        serve(*socket, connection);
        connection.ended = true;
      });
    } catch (const std::exception& error) {  // who connects sees it end
      connections_.pop_back();
      log(LogLevel::warn, std::string("a Store cannot serve another host: ") + error.what());
    }
  }
}

/** Their threads see the connections end. */
void StoreServer::turn_silent_away() {
  const auto now = std::chrono::steady_clock::now();
  for (Connection& one : connections_) {
    const auto socket = one.socket.lock();
    if (!socket || now - one.since < kForAHelloWhereFull) continue;
    if (mpi::unread(*socket) >= kHello) continue;  // its thread has still to read that
    Caller caller = Caller::stranger;
    if (!one.caller.compare_exchange_strong(caller, Caller::turned_away)) continue;
    ::shutdown(socket->get(), SHUT_RDWR);
  }
}

void StoreServer::note_refusal(int error) {
  if (!mpi::is_shortage(error) || std::exchange(told_of_shortage_, true)) return;
  log(LogLevel::warn,
      "a Store lets no more ranks of other hosts connect: " + mpi::error_text(error));
}

void StoreServer::remove_ended() {
  for (auto one = connections_.begin(); one != connections_.end();) {
    if (!one->ended) {
      ++one;
      continue;
    }
    one->thread.join();
    one = connections_.erase(one);
  }
}

void StoreServer::serve(const mpi::Socket& socket, Connection& connection) {
  try {
    StoreHello hello;
    if (!receive_bytes(socket, mpi::bytes_of(hello), {kForAHello, stop_.get()})) return;
    if (hello.wanted != endpoint_.token) return;  // a stranger
    Caller caller = Caller::stranger;
    if (!connection.caller.compare_exchange_strong(caller, Caller::known)) return;
    if (!mpi::keep_alive(socket)) throw SystemError("nobody would see the host's end", errno);
    serve_rank(hello, socket);
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string("a Store gives up a connection: ") + error.what());
  }
}

void StoreServer::serve_rank(const StoreHello& hello, const mpi::Socket& socket) {
  const int rank = hello.rank;
  {
    const std::lock_guard lock(mutex_);
    ++guests_[rank].connections;
  }
  const Patience patient{Waiter::kForEver, stop_.get()};
  StoreRequest request;
  try {
    send_bytes(socket, hello.own, patient);  // who has gone by now has said why
    do {
      if (!receive_bytes(socket, mpi::bytes_of(request), patient)) throw ConnectionOver();
    } while (answer(rank, socket, request));
  } catch (const ConnectionOver& over) {
    note_end(rank, true);
    if (over.within_request) wait_for_word(rank);
    return lose_if_dead(rank);
  } catch (...) {
    note_end(rank, false);
    throw;
  }
  note_end(rank, false);
  lose_if_dead(rank);
}

void StoreServer::note_end(int rank, bool cut) {
  const std::lock_guard lock(mutex_);
  Guest& guest = guests_[rank];
  --guest.connections;
  guest.cut = guest.cut || cut;
}

bool StoreServer::has_died(int rank) {
  const std::lock_guard lock(mutex_);
  const Guest& guest = guests_[rank];
  return guest.connections == 0 && guest.cut && !guest.left;
}

void StoreServer::wait_for_word(int rank) {
  Deadline limit(kForAWord);
  while (has_died(rank) && !limit.expired() && !is_stopped(kBetweenLooksAtSockets)) {
  }
}

void StoreServer::lose_if_dead(int rank) {
  if (has_died(rank) && !is_stopped()) table_.lose(rank);
}

bool StoreServer::is_stopped(std::chrono::milliseconds within) const {
  pollfd stopped{stop_.get(), POLLIN, 0};
  return ::poll(&stopped, 1, static_cast<int>(within.count())) != 0;
}

bool StoreServer::answer(int rank, const mpi::Socket& socket, const StoreRequest& request) {
  using Kind = StoreRequest::Kind;
  if (request.kind == Kind::end) return false;
  // Who gives up in the middle keeps the connection, and moves nothing more.
  const Patience patient{table_.timeout(), stop_.get()};
  if (request.kind == Kind::leave) {
    {
      const std::lock_guard lock(mutex_);
      guests_[rank].left = true;
    }
    send_bytes(socket, mpi::bytes_of(StoreReply{}), patient);
    return false;
  }
  if (request.key_bytes < 0 || request.value_bytes < 0) {
    throw InvalidArgument("rank " + std::to_string(rank) + " asked with a key of " +
                          std::to_string(request.key_bytes) + " bytes and a value of " +
                          std::to_string(request.value_bytes));
  }
  std::string key(static_cast<std::size_t>(request.key_bytes), '\0');
  const auto given_bytes = static_cast<std::size_t>(request.value_bytes);
  const auto room = std::make_unique_for_overwrite<std::byte[]>(given_bytes);  // no memory yet
  const std::span given(room.get(), given_bytes);
  if (!receive_bytes(socket, std::as_writable_bytes(std::span(key)), patient) ||
      !receive_bytes(socket, given, patient)) {
    throw ConnectionOver{.within_request = true};
  }
  StoreAnswer result;
  try {
    result = carry_out(request, key, given, socket);
  } catch (const GivenUp&) {
    return true;
  }
  result.reply.bytes = std::ssize(result.bytes);
  // Where that fails, what came last says whether the rank has ended the connection, or has died.
  if (send_bytes(socket, mpi::bytes_of(result.reply), patient)) {
    send_bytes(socket, result.bytes, patient);
  }
  return true;
}

StoreAnswer StoreServer::carry_out(const StoreRequest& request, std::string_view key,
                                   std::span<const std::byte> given, const mpi::Socket& socket) {
  using Kind = StoreRequest::Kind;
  StoreAnswer result;
  try {
    if (request.kind == Kind::set) {
      table_.set(key, given);
    } else if (request.kind == Kind::room) {
      table_.check_room(key, request.number);
    } else if (request.kind == Kind::add) {
      result.reply.number = table_.add(key, request.number);
    } else {
      const auto take = request.kind == Kind::pop ? KeyValues::Take::remove : KeyValues::Take::copy;
      result.bytes =
          table_.get(key, take, std::chrono::milliseconds(request.number), [&] { look(socket); });
    }
  } catch (const std::exception& error) {
    result.reply = reply_of(error);
    const std::string text = text_of(error);
    const auto bytes = std::as_bytes(std::span(text));
    result.bytes.assign(bytes.begin(), bytes.end());
  }
  return result;
}

void StoreServer::look(const mpi::Socket& socket) {
  if (is_stopped()) throw ConnectionOver();
  std::byte next{};
  const ssize_t there = ::recv(socket.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  if (there > 0) throw GivenUp();
  if (there == 0 || (errno != EAGAIN && errno != EINTR)) throw ConnectionOver();
  const std::lock_guard lock(looking_);
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.process.ended() && !table_.has_left(neighbour.rank)) {
      table_.lose(neighbour.rank);
    }
  }
}

}  // namespace tutti
