// Waiting with one eye on the peers.
#include "comm/shm/group/local_group.hpp"

#include <sched.h>
#include <unistd.h>

#include "base/deadline.hpp"
#include "base/finally.hpp"
#include "comm/shm/group/registry.hpp"
#include "device/cpu/relax.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

constexpr std::chrono::milliseconds kNap{50};  // the longest sleep between two looks

constexpr WaitPolicy kPolicy{
    // A rank that is just behind comes sooner than the clock can be read, or than a pause ends.
    .first_looks = 500,
    // Waking a sleeper takes 50 to 100 us, and whoever it keeps waiting falls asleep in turn.
    .spin = std::chrono::microseconds(300),
    .between = &cpu::relax,
    .nap = kNap};
// Where ranks share a core, looking on takes time from whom one waits for: it is offered the core.
constexpr WaitPolicy kCrowdedPolicy{
    .first_looks = 50, .spin = std::chrono::microseconds(50), .nap = kNap};
// A message from another host takes longer than giving the core away, and whoever fetches it needs
// one, as does what else the machine runs.
constexpr WaitPolicy kPatientPolicy{
    .first_looks = 500, .spin = std::chrono::microseconds(300), .nap = kNap};

}  // namespace

LocalGroup::LocalGroup(const UniqueId& id, int rank, std::vector<int> names,
                       std::chrono::milliseconds timeout, std::optional<Participants> participants)
    : names_(std::move(names)),
      timeout_(timeout),
      rendezvous_(
          meet(id, rank, participants ? *participants : Participants{names_, {}, {}, {}}, timeout)),
      on_loss_(participants ? std::move(participants->on_loss) : nullptr),
      rank_(rank),
      process_(::getpid()),
      crowded_(crowded()),
      journal_(control().ring(rank), *this),
      seen_stopped_(names_.size()) {
  for (std::vector<int>& missing : missing_) missing.reserve(names_.size());
  for (int peer = 0; peer < size(); ++peer) {
    int ranks = 0;
    for (int other = 0; other < size(); ++other) {
      if (control().slot(other).process == control().slot(peer).process) ++ranks;
    }
    shares_process_.push_back(ranks > 1);
  }
  GroupRegistry::of_this_process().add(this);
}

LocalGroup::~LocalGroup() {
  GroupRegistry::of_this_process().remove(this);
  leave();
}

void LocalGroup::leave() noexcept {
  if (process_ != ::getpid()) return;
  own().state.store(RankSlot::kLeft, std::memory_order_release);
  wake_all();
}

bool LocalGroup::has_ended() noexcept {
  if (process_ != ::getpid()) return true;
  if (!has_failed()) {
    for (int peer = 0; peer < size(); ++peer) {
      if (!has_left(peer)) return false;
    }
    return true;
  }
  if (on_loss_ && failure().kind == FailureReport::Kind::peer_lost) on_loss_();
  return true;
}

/** Whether there are more ranks than processors that any of them may run on, as far as is known. */
bool LocalGroup::crowded() const {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int peer = 0; peer < size(); ++peer) CPU_OR(&all, &all, &control().slot(peer).processors);
  const int processors = CPU_COUNT(&all);  // 0 where the kernel has more of them than a set
  return processors > 0 && size() > processors;
}

bool LocalGroup::is_one_process() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (control().slot(peer).process != own().process) return false;
  }
  return true;
}

void LocalGroup::arrive() { own().phase.publish(++phase_); }

void LocalGroup::come(std::uint64_t number) {
  own().arrival_signal(number).publish(static_cast<std::uint32_t>(number));
}

template <class SignalOf, class Arrived>
void LocalGroup::wait_for_each(const SignalOf& signal_of, const Arrived& arrived, Waited waited) {
  const auto missing = [&](std::vector<int>& ranks) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_ && !arrived(signal_of(peer))) ranks.push_back(peer);
    }
  };
  Waiter waiter(policy(), timeout_);  // one deadline for all, not one for each in turns
  std::uint64_t since = 0;
  int last = rank_;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    const Signal signal = signal_of(peer);
    const bool waited_here = wait(
        signal, Wait::collective, waiter, since, [&] { return arrived(signal); }, missing);
    if (waited_here) last = peer;
  }
  if (last != rank_ && waited == Waited::for_arrival) note_wait(Wait::collective, last, since);
}

void LocalGroup::wait_for_arrivals(std::uint64_t number, Waited waited) {
  // Not "has reached": a place holds this collective's number or an older one.
  const auto wanted = static_cast<std::uint32_t>(number);
  wait_for_each([&](int peer) { return control().slot(peer).arrival_signal(number); },
                [wanted](const Signal& signal) { return signal.is(wanted); }, waited);
}

void LocalGroup::wait_for_all(Flag RankSlot::*flag, std::uint32_t target, Waited waited) {
  wait_for_each([&](int peer) { return (control().slot(peer).*flag).signal(); },
                [target](const Signal& signal) { return signal.reached(target); }, waited);
}

std::uint64_t LocalGroup::wait_for(int peer, Flag RankSlot::*flag, std::uint32_t target) {
  Flag& awaited = control().slot(peer).*flag;
  const auto done = [&] { return awaited.reached(target); };
  std::uint64_t since = 0;
  if (done()) return since;
  Waiter waiter(policy(), timeout_);
  wait(awaited.signal(), Wait::collective, waiter, since, done,
       [peer](auto& ranks) { ranks.push_back(peer); });
  return since;
}

void LocalGroup::wait_for_mail(Wait kind, const std::function<bool()>& done,
                               std::span<const int> awaited) {
  Waiter waiter(policy(), timeout_);
  std::uint64_t since = 0;
  const auto fill = [awaited](std::vector<int>& ranks) {
    ranks.assign(awaited.begin(), awaited.end());
  };
  if (wait(own().mail.signal(), kind, waiter, since, done, fill)) {
    note_wait(kind, awaited.front(), since);
  }
}

bool LocalGroup::wait_for_mail_of(Senders senders, Wait kind, const std::function<bool()>& done) {
  Waiter waiter(policy(), timeout_);
  if (waiter.spin(done)) return true;
  const Signal signal = own().mail.signal();
  Suspicion nobody;
  const Finally end([&] {
    end_elsewhere(kind);
    end_wait(kind, nobody);
  });
  for (;;) {
    const std::uint32_t seen = signal.value();
    const bool failed = has_failed();
    if (done()) return true;
    if (failed) check_failure();
    tell_wait(kind, {}, nobody);
    pulse_elsewhere(kind);  // whoever waits for this rank leaves it to this wait's deadline
    idle({});
    const std::vector<int> gone = senders == Senders::any ? those_gone() : std::vector<int>();
    if (waiter.expired() || (!gone.empty() && gone.size() == others().size())) {
      if (done()) return true;
      check_failure();
      if (gone.empty()) return false;
      lose(gone, kGoneMeanwhile);
    }
    waiter.nap([&](Waiter::Duration limit) { signal.sleep(seen, limit); });
  }
}

void LocalGroup::look_after_mail(const std::vector<int>& awaited,
                                 const std::function<bool()>& done) {
  look_around(awaited, done);
}

std::vector<int> LocalGroup::those_gone() const {
  std::vector<int> gone;
  for (const int peer : others()) {
    if (control().slot(peer).has_left() ||
        rendezvous_.watches[static_cast<std::size_t>(peer)].ended()) {
      gone.push_back(peer);
    }
  }
  return gone;
}

const WaitPolicy& LocalGroup::policy() const {
  if (crowded_) return kCrowdedPolicy;
  return patient_ ? kPatientPolicy : kPolicy;
}

template <class Done, class Awaited>
bool LocalGroup::wait(const Signal& signal, Wait kind, Waiter& waiter, std::uint64_t& since,
                      const Done& done, const Awaited& awaited) {
  if (waiter.look_first(done)) return false;
  if (since == 0) since = journal_.now();
  if (waiter.look_on(done)) return true;
  Suspicion suspicion;
  const Finally end([&] { end_wait(kind, suspicion); });  // however that was
  for (bool slept = false;; slept = true) {
    const std::uint32_t seen = signal.value();
    const bool failed = has_failed();  // whoever failed after this wait had ended does not end it
    if (done()) break;
    if (failed) check_failure();
    std::vector<int>& missing = missing_[static_cast<std::size_t>(kind)];
    missing.clear();
    awaited(missing);
    if (missing.empty()) continue;  // all came after done() looked
    waiting_for(kind).store(missing.front(), std::memory_order_relaxed);
    if (slept) {  // others come to ask after seconds, not in the first moment
      tell_wait(kind, missing, suspicion);
      watch_states(missing);
    } else {
      own().heartbeat.fetch_add(1, std::memory_order_relaxed);
    }
    // Who has come since may have gone on, and left: nobody is lost by what was missing before.
    const auto has_changed = [&] {
      std::vector<int> now;
      awaited(now);
      return now != missing || done();
    };
    look_around(missing, has_changed);
    idle(missing);
    if (waiter.expires_within(inquiry_lead(timeout_))) begin_to_ask(missing, suspicion);
    if (waiter.expired()) accuse(missing, suspicion, has_changed);
    waiter.nap([&](Waiter::Duration limit) { signal.sleep(seen, limit); });
  }
  waiting_for(kind).store(kNotWaiting, std::memory_order_relaxed);
  return true;
}

template <class Done>
void LocalGroup::look_around(const std::vector<int>& awaited, const Done& done) {
  std::vector<int> ended;
  std::vector<int> left;
  for (const int peer : awaited) {
    if (has_left(peer)) {
      left.push_back(peer);
    } else if (rendezvous_.watches[static_cast<std::size_t>(peer)].ended()) {
      ended.push_back(peer);
    }
  }
  if (ended.empty() && left.empty()) return;
  if (done()) return;  // it did its part before it went
  check_failure();     // it went because of a failure that it has told
  if (!ended.empty()) lose(ended, "its process has ended", Ended::yes);
  lose(left, "it has destroyed its communicator");
}

void LocalGroup::pulse() {
  beat();
  check_failure();
}

void LocalGroup::look_after_all() {
  pulse();
  std::vector<int> ended;  // who has only left may have done its part before
  for (const int peer : others()) {
    if (rendezvous_.watches[static_cast<std::size_t>(peer)].ended()) ended.push_back(peer);
  }
  if (!ended.empty()) lose(ended, "its process has ended", Ended::yes);
}

void LocalGroup::look_after_present() {
  pulse();
  std::vector<int> ended;
  for (const int peer : others()) {
    if (rendezvous_.watches[static_cast<std::size_t>(peer)].ended() && !has_left(peer)) {
      ended.push_back(peer);
    }
  }
  if (!ended.empty()) lose(ended, "its process has ended", Ended::yes);
}

void LocalGroup::overdue() {
  std::string reason;
  const std::vector<int> guilty = culprits(others(), {}, reason);
  if (!guilty.empty()) lose(guilty, reason);
}

std::vector<int> LocalGroup::others() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) ranks.push_back(peer);
  }
  return ranks;
}

void LocalGroup::idle(const std::vector<int>& awaited) const {
  if (idle_) idle_(names_of(awaited));
}

RecycledVector<int> LocalGroup::names_of(const std::vector<int>& ranks) const {
  RecycledVector<int> names;
  for (const int rank : ranks) names.push_back(name_of(rank));
  return names;
}

void LocalGroup::wake_all() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    RankSlot& slot = control().slot(peer);
    for (const std::uint64_t parity : {0U, 1U}) slot.arrival_signal(parity).wake();
    for (Flag* flag : {&slot.phase, &slot.staged, &slot.taken, &slot.mail, &slot.noted})
      flag->wake();
  }
}

}  // namespace tutti::shm
