// A worker's side of the meeting: calls all servers until each has let it in.
#include <poll.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "ps/link/conversation.hpp"
#include "ps/link/host_layout.hpp"
#include "ps/link/host_link.hpp"
#include "ps/link/meeting.hpp"
#include "ps/link/remote_link.hpp"
#include "ps/link/terms.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr std::chrono::milliseconds kForAConnection{2000};
constexpr std::chrono::milliseconds kForAWelcome{5000};  // where there is another address to try
constexpr std::chrono::milliseconds kUntilTheNextTry{50};

/** What a worker says to every server. */
struct Introduction {
  int worker = 0;
  std::string terms;
  mpi::Token token{};
  Place place{};
  std::uint64_t network = 0;
};

/** Calls one server, at one address after the other, again and again. */
class Caller {
 public:
  Caller(const ServerAddress& server, const Introduction& own) : server_(server), own_(own) {}

  const ServerAddress& server() const { return server_; }
  /** It has all that a link needs, or the server has given up. */
  bool is_done() const { return greeting_.has_value() || has_given_up(); }
  bool has_given_up() const { return !mismatch_.empty(); }
  /** Why the server has given up. */
  const std::string& mismatch() const { return mismatch_; }
  bool has_met() const { return met_; }
  /** The ranks that the server waits for, and who they are, once it has said so. */
  const Note& waiting() const { return waiting_; }
  /** Why the server has not let this worker in, if it has said so. */
  const std::string& refusal() const { return refusal_; }

  /** Goes on as far as is possible now. Throws PeerLost as the server says. */
  void step() {
    if (is_done()) return;
    if (!call_ && !(resting_ && !resting_->expired())) connect();
    if (call_ && !has_called_) say_hello();
    if (call_ && has_called_) listen();
    if (data_) connect_data();
  }

  /** The descriptor that it waits for, and what for; -1 for none. */
  pollfd wanted() const {
    if (!call_ || is_done()) return {-1, 0, 0};
    if (data_) return {data_->socket().get(), POLLOUT, 0};
    const bool writes = !has_called_ || call_->is_sending();
    return {call_->socket().get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0};
  }

  /** Tells the server, once, that the terms of another one differ. */
  void tell(const std::string& mismatch) {
    if (!met_ || is_done() || has_told_) return;
    call_->say(Note{NoteHeader::Kind::mismatch, mismatch, {}}, own_.token);
    has_told_ = true;
  }

  Joined finish(const RowFormat& format, std::chrono::milliseconds timeout) {
    if (!greeting_) return {};
    mpi::Socket control = call_->release();
    std::unique_ptr<Link> link;
    if (requests_) {
      link = std::make_unique<HostLink>(std::move(control), server_.name, std::move(requests_),
                                        std::move(answers_), timeout);
    } else {
      link = std::make_unique<RemoteLink>(std::move(control), std::move(data_socket_), server_.name,
                                          format, timeout);
    }
    return {std::move(link), std::move(*greeting_)};
  }

 private:
  void connect() {
    resting_.reset();
    const std::vector<mpi::Address> addresses = mpi::addresses_of(server_.endpoint, own_.network);
    if (addresses.empty()) return rest();
    alone_ = addresses.size() == 1;
    address_ = addresses[next_address_++ % addresses.size()];
    mpi::Socket socket = mpi::start_connecting(address_, server_.endpoint.port);
    if (!socket) return rest();
    call_.emplace(std::move(socket));
    limit_.emplace(kForAConnection);
  }

  void say_hello() {
    const mpi::Connecting state = mpi::connecting_state(call_->socket());
    if (state == mpi::Connecting::failed || (state != mpi::Connecting::done && limit_->expired())) {
      return rest();
    }
    if (state != mpi::Connecting::done) return;
    mpi::keep_alive(call_->socket());
    call_->say(mpi::bytes_of(hello(Hello::Purpose::meeting)));
    call_->say(std::as_bytes(std::span(own_.terms)));
    has_called_ = true;
    limit_.emplace(kForAWelcome);
  }

  Hello hello(Hello::Purpose purpose) const {
    Hello hello;
    hello.worker = own_.worker;
    hello.wanted = server_.endpoint.token;
    hello.own = own_.token;
    hello.place = own_.place;
    hello.purpose = purpose;
    hello.list = server_.list;
    if (purpose == Hello::Purpose::meeting) hello.terms_bytes = std::ssize(own_.terms);
    return hello;
  }

  void listen() {
    bool ended = !call_->flush();
    while (!is_done()) {
      std::optional<Note> note = call_->next_note(own_.token, ended);
      if (!note && ended) return rest();
      if (!note) break;
      handle(*note);
      if (!call_) return;
    }
    if (!met_ && !alone_ && limit_->expired()) rest();  // another machine may have this address
  }

  void handle(Note& note) {
    using Kind = NoteHeader::Kind;
    if (note.kind == Kind::missing) throw PeerLost(std::move(note.ranks), note.text);
    if (note.kind == Kind::mismatch) {
      mismatch_ = std::move(note.text);
    } else if (note.kind == Kind::stranger) {  // there may be another server in a moment
      refusal_ = std::move(note.text);
      rest();
    } else if (note.kind == Kind::waiting) {
      waiting_ = std::move(note);
    } else if (note.kind == Kind::start) {
      greeting_ = std::move(note.text);
    } else if (note.kind == Kind::welcome) {
      met_ = true;
      refusal_.clear();
      if (!note.text.empty()) share(note.text);
      if (requests_) return call_->say(Note{Kind::ready, requests_->name(), {}}, own_.token);
      mpi::Socket socket = mpi::start_connecting(address_, server_.endpoint.port);
      if (!socket) return rest();
      data_.emplace(std::move(socket));
      limit_.emplace(kForAConnection);
    }
  }

  /** A connection for data, where no memory is shared. */
  void connect_data() {
    const mpi::Connecting state = mpi::connecting_state(data_->socket());
    if (state == mpi::Connecting::under_way && !limit_->expired()) return;
    data_->say(mpi::bytes_of(hello(Hello::Purpose::data)));
    if (state != mpi::Connecting::done || data_->is_sending()) return rest();
    data_socket_ = data_->release();
    data_.reset();
    call_->say(Note{NoteHeader::Kind::ready, {}, {}}, own_.token);
  }

  /** Opens the server's memory, and makes some of its own. */
  void share(const std::string& name) {
    answers_ = open_heap(name, kPayloads);
    if (answers_) requests_ = std::make_unique<BlockHeap>(kPayloads);
  }

  /** The connection is over: another one in a moment. */
  void rest() {
    call_.reset();
    data_.reset();
    answers_.reset();
    requests_.reset();
    has_called_ = met_ = false;
    waiting_ = {};
    resting_.emplace(kUntilTheNextTry);
  }

  const ServerAddress& server_;
  const Introduction& own_;
  std::size_t next_address_ = 0;
  mpi::Address address_ = 0;
  bool alone_ = true;  // there is one address
  std::optional<Conversation> call_;
  bool has_called_ = false;  // and said hello
  bool met_ = false;         // and been let in
  std::optional<Deadline> limit_;
  std::optional<Deadline> resting_;
  std::optional<Conversation> data_;  // until the server knows whose it is
  mpi::Socket data_socket_;
  std::shared_ptr<shm::Mapping> answers_;
  std::unique_ptr<BlockHeap> requests_;
  Note waiting_;
  std::string refusal_;
  std::optional<std::string> greeting_;
  std::string mismatch_;
  bool has_told_ = false;
};

/** Whom a worker waits for: servers that are not there, or those that servers wait for. */
struct Missing {
  std::set<int> ranks;
  std::string text;
};

Missing missing_of(const std::vector<Caller>& callers) {
  Missing missing;
  const auto add = [&](const std::string& text) {
    missing.text += (missing.text.empty() ? "" : ", ") + text;
  };
  for (const Caller& caller : callers) {
    if (caller.has_met() || caller.is_done()) continue;
    missing.ranks.insert(caller.server().name.rank);
    const std::string why =
        caller.refusal().empty() ? "" : ", has not let this worker in: " + caller.refusal();
    add(caller.server().name.text + " (" + caller.server().address + why + ")");
  }
  for (const Caller& caller : callers) {
    if (!caller.has_met() || caller.is_done() || caller.waiting().ranks.empty()) continue;
    missing.ranks.insert(caller.waiting().ranks.begin(), caller.waiting().ranks.end());
    add(caller.waiting().text + ", for whom " + caller.server().name.text + " waits");
  }
  return missing;
}

PeerLost lost(const std::vector<Caller>& callers, const Missing& missing,
              std::chrono::milliseconds timeout) {
  std::vector<int> ranks(missing.ranks.begin(), missing.ranks.end());
  std::string text = missing.text;
  for (const Caller& caller : callers) {  // they have not said for whom they wait
    if (!missing.ranks.empty() || caller.is_done()) continue;
    ranks.push_back(caller.server().name.rank);
    text += (text.empty() ? "" : ", ") + caller.server().name.text;
  }
  return {ranks, text + ": not ready within " + seconds_text(timeout)};
}

/** Sleeps until a connection has news, or `limit` has passed. */
void wait_for_news(const std::vector<Caller>& callers, Waiter::Duration limit) {
  std::vector<pollfd> entries;
  for (const Caller& caller : callers) entries.push_back(caller.wanted());
  ::poll(entries.data(), entries.size(),
         static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count()));
}

}  // namespace

Meeting meet_servers(std::span<const ServerAddress> servers, int worker, const Name& name,
                     const Terms& terms, const RowFormat& format,
                     std::chrono::milliseconds timeout) {
  const std::string machine = host_name();
  Introduction own{worker, join_terms(terms), {}, own_place(machine), mpi::network_id(machine)};
  fill_with_random(own.token, "a link");
  std::vector<Caller> callers;
  callers.reserve(servers.size());
  for (const ServerAddress& server : servers) callers.emplace_back(server, own);

  Waiter waiter(kMeetingPolicy, timeout);
  auto next_line = kUntilALogLine;
  Meeting meeting;
  std::optional<Deadline> to_tell_all;
  while (true) {
    for (Caller& caller : callers) {
      caller.step();
      if (meeting.mismatch.empty()) meeting.mismatch = caller.mismatch();
    }
    if (!meeting.mismatch.empty()) {
      if (!to_tell_all) to_tell_all.emplace(kToTellAll);
      for (Caller& caller : callers) caller.tell(meeting.mismatch);
    }
    if (std::all_of(callers.begin(), callers.end(),
                    [](const Caller& caller) { return caller.is_done(); }) ||
        (to_tell_all && to_tell_all->expired())) {
      break;
    }
    const Missing missing = missing_of(callers);
    if (!missing.ranks.empty() && waiter.waited() >= next_line) {
      next_line += kBetweenLogLines;
      log(LogLevel::warn, name.text + " waits for " + missing.text);
    }
    if (waiter.expires_within(missing.ranks.empty() ? -kGraceOfServer
                                                    : std::chrono::milliseconds(0))) {
      throw lost(callers, missing, timeout);
    }
    waiter.nap([&](Waiter::Duration limit) { wait_for_news(callers, limit); });
  }

  for (Caller& caller : callers) meeting.servers.push_back(caller.finish(format, timeout));
  return meeting;
}

}  // namespace tutti::ps
