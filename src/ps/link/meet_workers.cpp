// A server's side of the meeting: lets its workers in, and nobody else.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
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
#include "ps/link/epoll_links.hpp"
#include "ps/link/host_layout.hpp"
#include "ps/link/host_peer.hpp"
#include "ps/link/meeting.hpp"
#include "ps/link/remote_peer.hpp"
#include "ps/link/terms.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr std::chrono::milliseconds kForAHello{5000};
constexpr std::size_t kMostStrangers = 64;
constexpr std::chrono::milliseconds kBetweenNotes{1000};

/** Who connects is a stranger until it has shown the token, and one of the workers from then on. */
class Reception {
 public:
  Reception(Listener listener, std::span<const Name> workers, const Terms& terms)
      : listener_(std::move(listener)),
        workers_(workers),
        terms_(terms),
        place_(own_place(host_name())),
        members_(workers.size()) {}

  /** Goes on with everybody as far as is possible now. */
  void step() {
    accept();
    std::erase_if(strangers_, [this](Stranger& one) { return !go_on(one); });
    for (Member& member : members_) go_on(member);
  }
  bool all_are_ready() const {
    return std::all_of(members_.begin(), members_.end(),
                       [](const Member& member) { return member.is_ready(); });
  }
  bool all_have_come() const {
    return std::all_of(members_.begin(), members_.end(),
                       [](const Member& member) { return member.was_here; });
  }
  /** What is to be said of terms that differ; empty if there are none. */
  const std::string& mismatch() const { return mismatch_; }

  /** Those that are not here; with `here`, those that are. */
  Note missing(bool here = false) const {
    Note note{NoteHeader::Kind::waiting, {}, {}};
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].is_ready() != here) continue;
      note.ranks.push_back(workers_[i].rank);
      note.text += (note.text.empty() ? "" : ", ") + workers_[i].text;
      if (members_[i].was_here && !members_[i].talk) note.text += " (came, and has gone)";
    }
    return note;
  }

  void tell_all(const Note& note) {
    for (Member& member : members_) {
      if (member.talk) member.talk->say(note, member.token);
    }
  }
  /** Waits a moment until everybody has got what was told. */
  void flush() {
    Waiter waiter(kMeetingPolicy, kToTellAll);
    const auto is_sending = [](Member& member) {
      return member.talk && member.talk->flush() && member.talk->is_sending();
    };
    while (std::any_of(members_.begin(), members_.end(), is_sending) && !waiter.expired()) {
      wait_for_news(std::chrono::milliseconds(10));
    }
  }

  /** Sleeps until a connection has news, or `limit` has passed. */
  void wait_for_news(Waiter::Duration limit) const {
    std::vector<pollfd> entries{{listener_.socket.get(), POLLIN, 0}};
    const auto add = [&](const Conversation& talk) {
      const auto events = static_cast<short>(talk.is_sending() ? POLLIN | POLLOUT : POLLIN);
      entries.push_back({talk.socket().get(), events, 0});
    };
    for (const Stranger& stranger : strangers_) add(stranger.talk);
    for (const Member& member : members_) {
      if (member.talk) add(*member.talk);
    }
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count()));
  }

  std::vector<std::unique_ptr<Peer>> peers(const RowFormat& format) {
    std::vector<std::unique_ptr<Peer>> peers;
    for (Member& member : members_) {
      const int worker = static_cast<int>(peers.size());
      if (member.requests) {
        peers.push_back(std::make_unique<HostPeer>(
            member.talk->release(), worker, std::move(member.requests), std::move(member.answers)));
      } else {
        peers.push_back(std::make_unique<RemotePeer>(member.talk->release(), std::move(member.data),
                                                     worker, format));
      }
    }
    return peers;
  }

 private:
  struct Stranger {
    Conversation talk;
    Deadline limit{kForAHello};
    std::optional<Hello> hello;
  };
  struct Member {
    std::optional<Conversation> talk;
    mpi::Token token{};
    std::unique_ptr<BlockHeap> answers;
    std::shared_ptr<shm::Mapping> requests;
    mpi::Socket data;
    bool has_spoken = false;  // it has said that it is ready
    bool was_here = false;

    /** Its connection for data may come after that. */
    bool is_ready() const { return has_spoken && (requests || data); }
  };

  void accept() {
    while (true) {
      mpi::Socket socket = mpi::accept_from(listener_.socket);
      if (!socket) {
        const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (full) throw SystemError("cannot take the call of a worker", errno);
        return;
      }
      strangers_.push_back({Conversation(std::move(socket)), Deadline(kForAHello), {}});
      // Who says nothing does not keep out who has something to say.
      if (strangers_.size() > kMostStrangers + members_.size()) strangers_.pop_front();
    }
  }

  /** Whether it stays a stranger. */
  bool go_on(Stranger& stranger) {
    using Heard = Conversation::Heard;
    if (!stranger.hello) {
      const Heard heard = stranger.talk.hear(sizeof(Hello));
      if (heard != Heard::all) return heard == Heard::too_little && !stranger.limit.expired();
      stranger.hello = value_at<Hello>(stranger.talk.heard(), 0);
      if (!is_worker(*stranger.hello)) {
        turn_away(stranger.talk, *stranger.hello);
        return false;
      }
    }
    const Hello& hello = *stranger.hello;
    const Heard heard =
        stranger.talk.hear(static_cast<std::int64_t>(sizeof hello) + hello.terms_bytes);
    if (heard != Heard::all) return heard == Heard::too_little && !stranger.limit.expired();
    const auto text = stranger.talk.heard().subspan(sizeof hello);
    const Terms terms = split_terms({reinterpret_cast<const char*>(text.data()), text.size()});
    stranger.talk.clear();
    let_in(std::move(stranger.talk), hello, terms);
    return false;
  }

  bool is_worker(const Hello& hello) const {
    return hello.magic == Hello::kMagic && hello.wanted == listener_.token && hello.worker >= 0 &&
           hello.worker < std::ssize(members_) && hello.terms_bytes >= 0 &&
           hello.terms_bytes <= kLongestText;
  }

  /** Tells who takes this server for that of its job what keeps it out, and logs it once. */
  void turn_away(Conversation& talk, const Hello& hello) {
    if (hello.magic != Hello::kMagic || hello.version != Hello::kVersion || listener_.list == 0 ||
        hello.wanted == listener_.token) {
      return;
    }
    const std::string why = hello.list == listener_.list
                                ? "their TUTTI_SECRET differs, or only one of them has any"
                                : "they were given different endpoints of servers";
    talk.say(Note{NoteHeader::Kind::stranger, why, {}}, hello.own);
    if (turned_away_.size() >= kMostStrangers) return;
    if (!turned_away_.emplace(hello.worker, hello.list).second) return;
    log(LogLevel::warn, listener_.name.text + " does not let in who is worker " +
                            std::to_string(hello.worker) + ": " + why);
  }

  void let_in(Conversation talk, const Hello& hello, const Terms& terms) {
    Member& member = members_[static_cast<std::size_t>(hello.worker)];
    go_on(member);  // one that has died may come again
    if (hello.purpose == Hello::Purpose::data) {
      if (member.talk && member.token == hello.own) member.data = talk.release();
      return;
    }
    const std::string& name = workers_[static_cast<std::size_t>(hello.worker)].text;
    std::string fault = compare_terms(listener_.name.text, terms_, name, terms);
    if (hello.version != Hello::kVersion) {
      fault = listener_.name.text + " and " + name + " are of different versions of tutti";
    }
    // One worker calls again over another address; two have been given one number.
    if (member.talk && member.token != hello.own)
      fault = "there are two processes that are " + name;
    if (mismatch_.empty()) mismatch_ = fault;
    if (!mismatch_.empty()) {
      talk.say(Note{NoteHeader::Kind::mismatch, fault.empty() ? mismatch_ : fault, {}}, hello.own);
      member.was_here = true;
      return;
    }
    mpi::keep_alive(talk.socket());
    member = {std::move(talk), hello.own, nullptr, nullptr, {}, false, true};
    Note welcome{NoteHeader::Kind::welcome, {}, {}};
    if (hello.place == place_) {
      member.answers = std::make_unique<BlockHeap>(kPayloads);
      welcome.text = member.answers->name();
    }
    member.talk->say(welcome, member.token);
  }

  void go_on(Member& member) {
    if (!member.talk) return;
    bool ended = !member.talk->flush();
    while (!ended) {
      const std::optional<Note> note = member.talk->next_note(member.token, ended);
      if (!note) break;
      if (note->kind == NoteHeader::Kind::mismatch && mismatch_.empty()) mismatch_ = note->text;
      if (note->kind != NoteHeader::Kind::ready || member.has_spoken) continue;
      member.requests = note->text.empty() ? nullptr : open_heap(note->text, kPayloads);
      if (!member.requests) member.answers.reset();
      member.has_spoken = true;
    }
    if (ended) member = {{}, {}, nullptr, nullptr, {}, false, true};
  }

  Listener listener_;
  std::span<const Name> workers_;
  const Terms& terms_;
  Place place_;
  std::list<Stranger> strangers_;
  std::set<std::pair<std::int32_t, std::uint32_t>> turned_away_;  // worker and list, logged
  std::vector<Member> members_;
  std::string mismatch_;
};

}  // namespace

std::unique_ptr<Links> meet_workers(Listener listener, std::span<const Name> workers,
                                    const Terms& terms, const RowFormat& format,
                                    const std::string& greeting,
                                    std::chrono::milliseconds timeout) {
  using Kind = NoteHeader::Kind;
  shm::sweep();
  const std::string self = listener.name.text;
  Reception reception(std::move(listener), workers, terms);
  Waiter waiter(kMeetingPolicy, timeout);
  Waiter::Duration next_line = kUntilALogLine;
  std::optional<Deadline> to_tell_all;
  for (reception.step(); !reception.all_are_ready(); reception.step()) {
    Note missing = reception.missing();
    if (!reception.mismatch().empty()) {  // those that come a little later hear it, too
      if (!to_tell_all) reception.tell_all({Kind::mismatch, reception.mismatch(), {}});
      if (!to_tell_all) to_tell_all.emplace(kToTellAll);
      if (reception.all_have_come() || to_tell_all->expired()) {
        reception.flush();
        throw MismatchError(reception.mismatch());
      }
    }
    if (waiter.expired()) {
      const std::string here = reception.missing(true).text;
      missing.kind = Kind::missing;
      missing.text += ": not ready within " + seconds_text(timeout) + ", for " + self +
                      (here.empty() ? "" : " and " + here);
      reception.tell_all(missing);
      reception.flush();
      throw PeerLost(missing.ranks, missing.text);
    }
    if (waiter.waited() >= next_line) {
      next_line += kBetweenLogLines;
      log(LogLevel::warn, self + " waits for " + missing.text);
    }
    if (waiter.due(kBetweenNotes)) reception.tell_all(missing);
    waiter.nap([&](Waiter::Duration limit) { reception.wait_for_news(limit); });
  }
  reception.tell_all({Kind::start, greeting, {}});
  reception.flush();
  return std::make_unique<EpollLinks>(reception.peers(format));
}

}  // namespace tutti::ps
