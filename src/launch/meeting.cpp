// Meets over TCP.
#include "launch/meeting.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/siphash.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "launch/process/lists.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCallLimit{5000};     // for one address
constexpr milliseconds kProofLimit{10'000};  // for a caller to say who it is
// For the wrappers of all to call, after each machine has just answered a check. Of a daemon that
// dies before it has called mpiexec says nothing.
constexpr milliseconds kArrivalLimit{20'000};
constexpr milliseconds kArrivalLimitPerRank{100};
constexpr milliseconds kSetupMargin{60'000};
constexpr std::size_t kMostGuests = 10'000;
constexpr std::uint32_t kMostBytes = 64 << 20;  // of a message
constexpr std::size_t kMostUnproved = 4096;     // of one whose sender may be anybody

std::string random_text() {
  std::array<std::byte, 16> bytes{};
  fill_with_random(bytes, "the secret of a job");
  std::string text;
  for (const std::byte byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", std::to_integer<unsigned>(byte));
    text += digits.data();
  }
  return text;
}

/** What only holders of the secret can tell of a text. */
std::string proof(const std::string& secret, const std::string& text) {
  SipKey key;
  std::array<std::uint64_t, 2> words{};
  for (std::size_t i = 0; i < 2; ++i) {
    words[i] = std::strtoull(secret.substr(16 * i, 16).c_str(), nullptr, 16);
  }
  key = {words[0], words[1]};
  return std::to_string(siphash(key, std::as_bytes(std::span(text))));
}

/** A peer whose machine has gone is noticed within seconds, after `silence` if what was sent to it
 * is on its way. */
void watch_peer(int socket, milliseconds silence) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence.count()));
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

/** On a connection for output: who does not read for long has not gone, but the kernel's limit is
 * for a window that stays shut as well. Keepalives are left, and the connection for control. */
void allow_slow_reader(int socket) {
  const int forever = 0;
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &forever, sizeof(forever));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses look_up(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_INET;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

/** Our address as who has `theirs` sees it; empty if there is no way. */
std::string address_towards(const addrinfo& theirs) {
  const FileDescriptor socket(::socket(theirs.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  if (!socket || ::connect(socket.get(), theirs.ai_addr, theirs.ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return {};
  }
  std::array<char, INET_ADDRSTRLEN> text{};
  return ::inet_ntop(AF_INET, &own.sin_addr, text.data(), text.size()) == nullptr ? ""
                                                                                  : text.data();
}

/** A connection to "10.0.0.1:40000"; empty if there is none soon. */
FileDescriptor call(const std::string& address, milliseconds silence) {
  const auto colon = address.rfind(':');
  const Addresses found = look_up(address.substr(0, colon), address.substr(colon + 1));
  if (!found) return {};
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw SystemError("cannot make a socket", errno);
  if (::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return {};
    pollfd done{socket.get(), POLLOUT, 0};
    if (::poll(&done, 1, static_cast<int>(kCallLimit.count())) != 1) return {};
  }
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return {};
  watch_peer(socket.get(), silence);
  return socket;
}

std::string read_exactly(int socket, std::size_t bytes, SteadyClock::time_point deadline) {
  std::string text(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyClock::now());
    pollfd source{socket, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&source, 1, static_cast<int>(left.count())) == 0) {
      throw SystemError("the launcher does not answer", ETIMEDOUT);
    }
    const ssize_t received = ::recv(socket, text.data() + done, bytes - done, 0);
    if (received == 0) throw SystemError("the launcher does not want this rank", ECONNRESET);
    if (received < 0 && errno != EAGAIN && errno != EINTR) {
      throw SystemError("the launcher cannot be heard", errno);
    }
    if (received > 0) done += static_cast<std::size_t>(received);
  }
  return text;
}

/** The next message, which must be of this type. What follows it stays in the socket. */
std::string await(const Channel& channel, MessageType expected, milliseconds limit) {
  const auto deadline = SteadyClock::now() + limit;
  const std::string header = read_exactly(channel.descriptor(), Channel::kHeader, deadline);
  std::uint32_t length = 0;
  std::memcpy(&length, header.data() + 1, sizeof(length));
  if (header[0] != static_cast<char>(expected) || length > kMostBytes) {
    throw SystemError("who answers is not a launcher", EPROTO);
  }
  return read_exactly(channel.descriptor(), length, deadline);
}

/** Calls the launcher, and proves to it who this is, as it does. */
Channel introduce(const std::string& address, const std::string& secret, const std::string& rank,
                  const char* what, milliseconds silence) {
  Channel channel(call(address, silence));
  if (!channel.open()) return channel;
  const std::string challenge = random_text();
  const auto now = SteadyClock::now().time_since_epoch().count();
  channel.send(MessageType::hello,
               join_list(std::vector<std::string>{challenge, rank, what, host_name(), TUTTI_VERSION,
                                                  std::to_string(now), boot_id()},
                         " "));
  const auto answer = split_list(await(channel, MessageType::challenge, kProofLimit), ' ');
  if (answer.size() != 2 || answer[0] != proof(secret, "launcher " + challenge)) {
    throw SystemError("who answers at " + address + " is not the launcher of this job", EPERM);
  }
  channel.send(MessageType::proof, proof(secret, "rank " + rank + " " + what + " " + answer[1]));
  return channel;
}

/** Takes a descriptor that a channel used away from it. */
int descriptor_of(const Channel& channel) {
  const int copy = ::dup(channel.descriptor());
  if (copy < 0) throw SystemError("cannot copy a descriptor", errno);
  return copy;
}

}  // namespace

milliseconds arrival_limit(std::size_t ranks) {
  return kArrivalLimit + ranks * kArrivalLimitPerRank;
}

milliseconds setup_limit(std::size_t ranks) { return arrival_limit(ranks) + kSetupMargin; }

Meeting::Meeting(milliseconds silence)
    : silence_(silence),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
      secret_(random_text()) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  if (!listener_ ||
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw SystemError("cannot listen for the ranks of other machines", errno);
  }
  port_ = ntohs(address.sin_port);
}

std::string Meeting::addresses_for(const std::vector<Host>& hosts) const {
  std::vector<std::string> addresses;
  for (const Host& host : hosts) {
    const Addresses theirs = look_up(host.name, "1");
    if (!theirs) refuse(host.name, ": no machine of that name is known here");
    std::string own = address_towards(*theirs);
    if (own.empty()) continue;
    own += ":" + std::to_string(port_);
    if (std::find(addresses.begin(), addresses.end(), own) == addresses.end()) {
      addresses.push_back(own);
    }
  }
  // Everybody has a loopback of its own: it is for the ranks that are here.
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& text) { return !text.starts_with("127."); });
  return join_list(addresses);
}

std::vector<int> Meeting::descriptors() const {
  std::vector<int> all{listener_.get()};
  for (const Guest& guest : guests_) all.push_back(guest.channel.descriptor());
  return all;
}

void Meeting::accept() {
  for (;;) {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (full) throw SystemError("cannot take the call of a rank of another machine", errno);
      return;
    }
    if (guests_.size() >= kMostGuests) continue;
    watch_peer(socket.get(), silence_);
    Guest& guest = guests_.emplace_back();
    guest.channel = Channel(std::move(socket));
    guest.challenge = random_text();
    guest.since = SteadyClock::now();
  }
}

void Meeting::hear(Guest& guest, MessageType type, std::string_view text) {
  Caller& caller = guest.caller;
  if (text.size() > kMostUnproved) return void(guest.refused = true);
  if (type == MessageType::hello && caller.host.empty()) {
    const auto fields = split_list(text, ' ');
    const auto rank = fields.size() == 7 ? parse_number<int>(fields[1]) : std::nullopt;
    const auto clock = fields.size() == 7 ? parse_number<std::int64_t>(fields[5]) : std::nullopt;
    if (!rank || !clock) return void(guest.refused = true);
    caller = {.rank = *rank,
              .control = fields[2] == "control",
              .host = fields[3],
              .version = fields[4],
              .clock = fields[6]};
    caller.behind = SteadyClock::now().time_since_epoch() - SteadyClock::duration(*clock);
    guest.channel.send(MessageType::challenge,
                       proof(secret_, "launcher " + fields[0]) + " " + guest.challenge);
  } else if (type == MessageType::proof && !caller.host.empty()) {
    const std::string said = "rank " + std::to_string(caller.rank) +
                             (caller.control ? " control " : " output ") + guest.challenge;
    guest.proved = text == proof(secret_, said);
    guest.refused = !guest.proved;
    if (!caller.control) allow_slow_reader(guest.channel.descriptor());
  } else {
    guest.refused = true;
  }
}

void Meeting::step(const std::function<void(const Caller&, Channel)>& take) {
  accept();
  for (Guest& guest : guests_) {
    const bool there = guest.channel.receive([&](MessageType type, std::string_view text) {
      if (!guest.proved && !guest.refused) hear(guest, type, text);
    });
    const bool late = SteadyClock::now() - guest.since > kProofLimit;
    const bool long_winded = guest.channel.incomplete() > kMostUnproved;
    guest.refused |= !guest.proved && (!there || late || long_winded);
  }
  std::vector<Guest> waiting;
  for (Guest& guest : guests_) {
    if (guest.proved) {
      take(guest.caller, std::move(guest.channel));
    } else if (!guest.refused) {
      waiting.push_back(std::move(guest));
    }
  }
  guests_ = std::move(waiting);
}

void Meeting::close() {
  listener_.reset(-1);
  guests_.clear();
}

std::string setup_text(const WrapperOptions& options, const std::vector<Variable>& environment) {
  const std::vector<std::string> words = options.arguments();
  std::string text = std::to_string(words.size());
  for (const std::string& word : words) text += '\0' + word;
  for (const Variable& variable : environment) text += '\0' + variable.name + "=" + variable.value;
  return text;
}

WrapperOptions join_launcher(const std::string& addresses, milliseconds silence) {
  const auto secret = environment(kSecretVariable);
  const auto rank = environment("OMPI_COMM_WORLD_RANK");
  if (!secret || secret->size() != 32 || !rank) {
    refuse("tutti rank --connect is for processes that tutti run has started through mpiexec");
  }
  ::unsetenv(kSecretVariable);
  const auto ranks =
      parse_number<std::size_t>(environment("OMPI_COMM_WORLD_SIZE").value_or("1")).value_or(1);
  for (const std::string& address : split_list(addresses)) {
    Channel output = introduce(address, *secret, *rank, "output", silence);
    if (!output.open()) continue;
    allow_slow_reader(output.descriptor());
    Channel control = introduce(address, *secret, *rank, "control", silence);
    if (!control.open()) continue;
    const auto fields = split_list(await(control, MessageType::setup, setup_limit(ranks)), '\0');
    const auto words =
        static_cast<std::ptrdiff_t>(parse_number<std::size_t>(fields.at(0)).value_or(0));
    if (words >= std::ssize(fields)) throw SystemError("the launcher's message is cut", EPROTO);
    for (auto variable = fields.begin() + 1 + words; variable != fields.end(); ++variable) {
      const auto equals = variable->find('=');
      ::setenv(variable->substr(0, equals).c_str(), variable->substr(equals + 1).c_str(), 1);
    }
    WrapperOptions options = parse_wrapper({fields.begin() + 1, fields.begin() + 1 + words});
    options.control = descriptor_of(control);
    options.output = descriptor_of(output);
    return options;
  }
  throw SystemError(host_name() + " cannot reach the launcher at " + addresses, EHOSTUNREACH);
}

}  // namespace tutti::launch
