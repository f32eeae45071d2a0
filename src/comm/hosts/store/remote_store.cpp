// Asks the store's server, and throws what it says.
#include "comm/hosts/store/remote_store.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/finally.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/failure.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kToConnect{5000};
constexpr std::chrono::milliseconds kToLeave{1000};
constexpr std::chrono::milliseconds kToWelcome{1000};
// What the server waits for itself it gives up at the same deadline, and says who is to blame.
constexpr std::chrono::milliseconds kToSayWho{1000};
constexpr int kMostTurnedAway = 2;
constexpr std::chrono::milliseconds kSoon{100};
constexpr std::chrono::milliseconds kLater{5};  // between two looks from then on
constexpr const char* kCannotConnect = "cannot connect to the store of rank 0";
constexpr std::int64_t kLong = std::int64_t{1} << 20;  // values that are not sent in vain
constexpr WaitPolicy kForAConnection{.nap = std::chrono::microseconds(200), .interruptible = false};

/** The connection has ended, or cannot be made. */
[[noreturn]] void lose_server() {
  throw PeerLost({0}, "it keeps the store, and has ended or has destroyed it");
}

[[noreturn]] void raise(const StoreReply& reply, const std::string& text) {
  using Status = StoreReply::Status;
  switch (reply.status) {
    case Status::deadline:
      throw DeadlineExceeded(text);
    case Status::refused:
      throw InvalidArgument(text);
    case Status::system:
      throw SystemError(text, static_cast<int>(reply.number));
    case Status::lost:
      throw PeerLost({static_cast<int>(reply.number)}, text);
    case Status::ended:
      throw ProcessesEnded({static_cast<int>(reply.number)}, text);
    default:
      throw CommunicationError(text);
  }
}

}  // namespace

RemoteStore::RemoteStore(const mpi::Endpoint& server, int rank, std::chrono::milliseconds timeout,
                         Look look)
    : server_(server),
      own_(mpi::Endpoint::at(0)),
      rank_(rank),
      timeout_(timeout),
      look_(std::move(look)) {
  const auto limit = std::min(kToConnect, timeout_ / 2);
  try {
    idle_.push_back(connect(limit, StoreRequest::Kind::end, InterruptCheck::poll));
  } catch (const DeadlineExceeded&) {
    throw SystemError(kCannotConnect, ETIMEDOUT);
  }
}

RemoteStore::~RemoteStore() {
  try {
    leave();
  } catch (...) {  // the server has ended, or is late and finds later what has been sent
  }
}

void RemoteStore::leave() {
  forget_closed();
  if (idle_.empty() && given_up_.empty()) return;
  const auto limit = std::min(kToLeave, timeout_);
  const auto look = [deadline = Deadline(limit)]() mutable {  // of all that
    if (deadline.expired()) throw DeadlineExceeded(kCannotConnect);
  };
  const Patience patience{limit, -1, look};
  constexpr auto kLeave = StoreRequest::Kind::leave;
  const mpi::Socket socket =
      idle_.empty() ? connect(limit, kLeave, patience.look) : std::move(idle_.back());
  StoreReply reply;
  if (send_bytes(socket, mpi::bytes_of(StoreRequest{kLeave}), patience)) {
    receive_bytes(socket, mpi::bytes_of(reply), patience);
  }
}

void RemoteStore::give_up(mpi::Socket socket) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    given_up_.push_back(std::move(socket));
  } catch (const std::exception&) {  // the error that it is given up for says more
  }
}

void RemoteStore::forget_closed() {
  const std::lock_guard lock(mutex_);
  std::erase_if(given_up_, [](const mpi::Socket& socket) {
    mpi::discard_input(socket);
    std::byte next{};
    return mpi::receive_exactly(socket, std::span(&next, 1)) == mpi::Received::closed;
  });
}

/** To all addresses at once, for some may lead nowhere, and says hello over each, for another
 * machine may have one of these, too. */
mpi::Socket RemoteStore::connect_once(Waiter& waiter, StoreRequest::Kind farewell,
                                      const Look& look) {
  struct Attempt {
    mpi::Socket socket;
    bool said_hello = false;
  };
  std::vector<Attempt> attempts;
  int error = EHOSTUNREACH;
  const auto note = [&error](int number) {  // that nobody listens says most
    if (error != ECONNREFUSED) error = number;
  };
  for (const mpi::Address address : mpi::addresses_of(server_, own_.network)) {
    mpi::Socket socket = mpi::start_connecting(address, server_.port);
    if (socket) {
      attempts.push_back({std::move(socket)});
    } else {
      note(errno);
    }
  }
  const Finally end([&] {
    for (Attempt& one : attempts) {
      if (!one.said_hello) continue;
      mpi::send_all(one.socket, mpi::bytes_of(StoreRequest{farewell}));
      give_up(std::move(one.socket));
    }
  });
  mpi::Socket found;
  const auto is_over = [&](Attempt& one) {
    if (found) return false;
    if (one.said_hello) {
      mpi::Token welcome{};
      const mpi::Received received = mpi::receive_exactly(one.socket, welcome);
      const bool is_welcome = received == mpi::Received::all && welcome == own_.token;
      if (is_welcome && mpi::keep_alive(one.socket)) found = std::move(one.socket);
      if (received == mpi::Received::too_few) return false;
      note(ECONNRESET);
      return true;
    }
    const mpi::Connecting state = mpi::connecting_state(one.socket);
    if (state == mpi::Connecting::failed) note(errno);
    if (state != mpi::Connecting::done) return state == mpi::Connecting::failed;
    const StoreHello hello{server_.token, own_.token, rank_};
    one.said_hello = mpi::send_all(one.socket, mpi::bytes_of(hello));
    if (!one.said_hello) note(ECONNRESET);
    return !one.said_hello;
  };
  for (;; waiter.pause()) {
    std::erase_if(attempts, is_over);
    if (found) return found;
    if (attempts.empty()) break;
    if (waiter.expired()) throw DeadlineExceeded(kCannotConnect);
    if (waiter.due(InterruptCheck::kInterval)) look();
    if (waiter.waited() > kSoon) std::this_thread::sleep_for(kLater);
  }
  throw SystemError(kCannotConnect, error);
}

mpi::Socket RemoteStore::connect(std::chrono::milliseconds limit, StoreRequest::Kind farewell,
                                 const Look& look) {
  Waiter waiter(kForAConnection, limit);
  for (int more = kMostTurnedAway;; --more) {
    try {
      return connect_once(waiter, farewell, look);
    } catch (const SystemError& error) {
      if (error.error_number() != ECONNRESET || more == 0) throw;
    }
  }
}

mpi::Socket RemoteStore::take_connection(const Look& look) {
  forget_closed();
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      mpi::Socket socket = std::move(idle_.back());
      idle_.pop_back();
      return socket;
    }
  }
  return connect_again(timeout_, look);
}

mpi::Socket RemoteStore::connect_again(std::chrono::milliseconds limit, const Look& look) {
  try {
    return connect(limit, StoreRequest::Kind::end, look);
  } catch (const DeadlineExceeded&) {
    throw PeerLost(
        {0}, "it keeps the store, and did not let this rank connect within " + seconds_text(limit));
  } catch (const SystemError& error) {  // it could before
    const int number = error.error_number();
    if (mpi::is_shortage(number)) throw;
    look();  // the communicator may have failed, which ended that rank as well
    if (number == ECONNREFUSED || number == ECONNRESET) lose_server();
    throw PeerLost({0}, "it keeps the store, and cannot be reached: " + mpi::error_text(number));
  }
}

void RemoteStore::lose_connection(const Look& look) {
  look();  // the communicator may have failed, which ended rank 0 as well
  mpi::Socket another = connect_again(std::min(kToWelcome, timeout_), look);
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(another));
  }
  throw PeerLost({rank_},
                 "its connection to the store has ended in the middle of a request, as it does "
                 "when nothing of that moves within " +
                     seconds_text(timeout_) + "; rank 0, which keeps the store, still answers");
}

StoreAnswer RemoteStore::ask(StoreRequest request, std::string_view key,
                             std::span<const std::byte> value, const Wait& wait) {
  request.key_bytes = std::ssize(key);
  request.value_bytes = std::ssize(value);
  mpi::Socket socket = take_connection(wait.unconnected);
  StoreAnswer answer;
  bool asked = false;
  // An answer may still come: what is asked next over this connection would take it for its own.
  // And what is sent after a part of a request would be taken for its rest.
  const auto end = [&] {
    if (asked) mpi::send_all(socket, mpi::bytes_of(StoreRequest{}));
    give_up(std::move(socket));
  };
  try {
    const Patience sending{timeout_, -1, wait.meanwhile};
    const Patience waiting{timeout_ + wait.beyond + kToSayWho, -1, wait.meanwhile};
    if (!send_bytes(socket, mpi::bytes_of(request), sending) ||
        !send_bytes(socket, std::as_bytes(std::span(key)), sending) ||
        !send_bytes(socket, value, sending)) {
      lose_connection(wait.unconnected);
    }
    asked = true;
    if (!receive_bytes(socket, mpi::bytes_of(answer.reply), waiting)) {
      lose_connection(wait.unconnected);
    }
    answer.bytes.resize(static_cast<std::size_t>(answer.reply.bytes));
    if (!receive_bytes(socket, answer.bytes, sending)) lose_connection(wait.unconnected);
  } catch (const DeadlineExceeded&) {
    end();
    throw PeerLost({0}, "it keeps the store, and did not answer within " + seconds_text(timeout_));
  } catch (...) {
    end();
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(socket));
  }
  if (answer.reply.status != StoreReply::Status::done) {
    raise(answer.reply, {reinterpret_cast<const char*>(answer.bytes.data()), answer.bytes.size()});
  }
  return answer;
}

void RemoteStore::set(std::string_view key, std::span<const std::byte> value) {
  const auto bytes = std::ssize(value);
  const Wait wait{.unconnected = look_};
  if (bytes >= kLong) ask({StoreRequest::Kind::room, 0, 0, bytes}, key, {}, wait);
  ask({StoreRequest::Kind::set}, key, value, wait);
}

std::int64_t RemoteStore::add(std::string_view key, std::int64_t delta) {
  return ask({StoreRequest::Kind::add, 0, 0, delta}, key, {}, {.unconnected = look_}).reply.number;
}

std::vector<std::byte> RemoteStore::get(std::string_view key, Take take,
                                        std::chrono::milliseconds timeout, const Look& look) {
  const auto kind = take == Take::remove ? StoreRequest::Kind::pop : StoreRequest::Kind::get;
  return ask({kind, 0, 0, timeout.count()}, key, {}, {.beyond = timeout, .meanwhile = look}).bytes;
}

}  // namespace tutti
