// Agreements through the first member, to everybody, between two, and by dissemination.
#include "comm/hosts/group/agreement.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/memory.hpp"

namespace tutti {
namespace {

constexpr int kCentre = 0;
/** HostGroup::kSmall on a fast wire, see Wire::is_fast(), of what goes through the first member. */
constexpr std::int64_t kSmallFast = std::int64_t{96} * 1024;
/** Of what is carried so much goes with the header. */
constexpr std::int64_t kFirst = Wire::kPiece - GroupAgreement::kHeaderBytes;
constexpr std::int64_t kTogether = Wire::kShort - GroupAgreement::kHeaderBytes;

}  // namespace

std::int64_t GroupAgreement::most_carried() const {
  constexpr std::int64_t kBetweenTwo = std::int64_t{128} * 1024;
  constexpr std::int64_t kAmongMany = 1024;
  // What a member has of all in the end: more takes longer than groups do (docs/design.md).
  constexpr std::int64_t kGathered = std::int64_t{1} << 20U;
  const int size = group_.size();
  const bool is_centred = group_.is_centred();
  if (size <= 2) return kBetweenTwo;
  const std::int64_t small = is_centred && group_.wire().is_fast() ? kSmallFast : HostGroup::kSmall;
  const std::int64_t share = small / (size - 1) / kHeaderBytes * kHeaderBytes;
  const std::int64_t gathered = kGathered / size / kHeaderBytes * kHeaderBytes;
  return is_centred ? share : std::max(share, std::min(gathered, kAmongMany));
}

bool GroupAgreement::carries(std::int64_t each, std::int64_t out) const {
  return each <= most_carried() && (!group_.is_centred() || out <= most_carried());
}

std::int64_t GroupAgreement::place_bytes() const {
  return group_.is_centred() ? kHeaderBytes + most_carried() : Wire::kPiece;
}

bool GroupAgreement::agree(std::uint64_t hash, const Brought& brought, std::span<std::byte> out,
                           const Merge& merge, Ahead* ahead) {
  const int size = group_.size();
  if (!places_) {
    // One of each member and the answer; or what leaves, what arrives, and what has come by then,
    // of two members also a copy of what leaves.
    const std::int64_t bytes = group_.is_centred() ? (size + 1) * place_bytes()
                                                   : 2 * place_bytes() + size * most_carried();
    places_ = std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  }
  const Header header{hash, 0, 0, group_.position(), 1, 0};
  if (size == 2) return swap(header, brought, merge);
  if (!group_.is_centred()) return disseminate(header, brought, merge);
  if (ahead != nullptr) return tell_all(header, *ahead);
  if (group_.position() == kCentre) return answer_all(header, brought, out, merge);
  return ask_centre(header, brought, out);
}

// --- Through the first member -------------------------------------------------------------------

bool GroupAgreement::ask_centre(Header header, const Brought& brought, std::span<std::byte> out) {
  std::byte* const question = place(group_.position());
  std::byte* const answer = place(kCentre);
  header.carried = brought.bytes_of(group_.position());
  std::memcpy(question, &header, sizeof header);
  copy_bytes(question + kHeaderBytes, brought.own.data(), header.carried);
  GroupBatch batch(group_, Wire::Traffic::collective);
  batch.keep(places_);
  batch.recv({answer, static_cast<std::size_t>(place_bytes())}, kCentre);
  batch.send({question, static_cast<std::size_t>(kHeaderBytes + header.carried)}, kCentre);
  batch.wait();
  const Header theirs = header_of(kCentre);
  last_ = theirs.late;
  if (theirs.hash == header.hash && theirs.agreed != 0) {
    copy_bytes(out.data(), answer + kHeaderBytes, std::ssize(out));
    return true;
  }
  tell_others_of_mismatch(header);
  drop_what_follows(header, nullptr);
  return false;
}

bool GroupAgreement::answer_all(Header header, const Brought& brought, std::span<std::byte> out,
                                const Merge& merge) {
  const int size = group_.size();
  {
    GroupBatch questions(group_, Wire::Traffic::collective);
    questions.keep(places_);
    for (int member = 1; member < size; ++member) {
      questions.recv({place(member), static_cast<std::size_t>(place_bytes())}, member);
    }
    questions.wait();
    header.late = questions.last_source();
  }
  last_ = header.late;
  RecycledVector<const void*> parts;
  parts.push_back(brought.own.data());
  for (int member = 1; member < size; ++member) {
    if (header_of(member).hash != header.hash) header.agreed = 0;
    parts.push_back(place(member) + kHeaderBytes);
  }
  std::byte* const answer = place(size);
  if (header.agreed != 0) {
    if (merge) merge(parts);
    header.carried = std::ssize(out);
    copy_bytes(answer + kHeaderBytes, out.data(), header.carried);
  }
  std::memcpy(answer, &header, sizeof header);
  GroupBatch answers(group_, Wire::Traffic::collective);
  answers.keep(places_);
  for (int member = 1; member < size; ++member) {
    answers.send({answer, static_cast<std::size_t>(kHeaderBytes + header.carried)}, member);
  }
  answers.wait();
  if (header.agreed == 0) drop_what_follows(header, nullptr);
  return header.agreed != 0;
}

// --- To everybody -------------------------------------------------------------------------------

/**
 * Each tells all others, and what it sends them ahead of the agreement comes right behind its
 * header. Others may be in a call in which they ask the first: they hear of the difference from
 * that one, and then tell everybody, too. So if they differ, each gets a header from each in any
 * case, and knows what follows it.
 */
bool GroupAgreement::tell_all(Header header, Ahead& ahead) {
  const int size = group_.size();
  ahead.batch.keep(places_);
  const auto tell = [&](int target) {
    const auto part = ahead.leaves[static_cast<std::size_t>(target)];
    std::byte* const leaving = place(size) + target * kHeaderBytes;
    header.follows = std::ssize(part);
    std::memcpy(leaving, &header, sizeof header);
    ahead.batch.send({leaving, static_cast<std::size_t>(kHeaderBytes)}, target);
    ahead.batch.send(part, target);
  };
  const auto gets_more = [&](int target) {
    return !ahead.leaves[static_cast<std::size_t>(target)].empty();
  };
  group_.in_turns([&](int /*source*/, int target) {
    if (!gets_more(target)) tell(target);
  });
  {
    const Held together(group_.wire());
    group_.in_turns([&](int /*source*/, int target) {
      if (gets_more(target)) tell(target);
    });
  }
  group_.in_turns([&](int source, int /*target*/) {
    ahead.batch.recv({place(source), static_cast<std::size_t>(place_bytes())}, source);
  });
  // What moves behind some headers counts while others are waited for.
  RecycledVector<std::byte> has_come(static_cast<std::size_t>(size));
  int missing = size - 1;
  const auto take = [&](int source) {
    const auto at = static_cast<std::size_t>(source);
    if (std::exchange(has_come[at], std::byte{1}) != std::byte{0}) return false;  // data
    last_ = source;
    if (header_of(source).hash == header.hash) {
      ahead.batch.recv(ahead.comes[at], source);
    } else {
      header.agreed = 0;
    }
    return --missing == 0;
  };
  ahead.batch.wait_until(take);
  if (header.agreed != 0) return true;
  drop_what_follows(header, &ahead);
  ahead.batch.wait();
  return false;
}

/** By who has asked the first, and has heard from it alone. */
void GroupAgreement::tell_others_of_mismatch(Header header) {
  header.agreed = 0;
  std::byte* const leaving = place(group_.size());
  std::memcpy(leaving, &header, sizeof header);
  GroupBatch headers(group_, Wire::Traffic::collective);
  headers.keep(places_);
  for (int member = 1; member < group_.size(); ++member) {
    if (member == group_.position()) continue;
    headers.recv({place(member), static_cast<std::size_t>(place_bytes())}, member);
    headers.send({leaving, static_cast<std::size_t>(kHeaderBytes)}, member);
  }
  headers.wait();
}

/** What nobody has wanted, by all headers: of those who do not ask for the same, and what would
 * have been wanted after the agreement. */
void GroupAgreement::drop_what_follows(const Header& own, const Ahead* ahead) {
  const auto unwanted_of = [&](int member) {
    const Header theirs = header_of(member);
    const bool comes = ahead != nullptr && theirs.hash == own.hash &&
                       !ahead->comes[static_cast<std::size_t>(member)].empty();
    return member == group_.position() || comes ? 0 : theirs.follows;
  };
  std::int64_t bytes = 0;
  for (int member = 0; member < group_.size(); ++member) bytes += unwanted_of(member);
  const Scratch memory(group_.wire().scratch(), bytes);
  std::byte* to = memory.data();
  GroupBatch unwanted(group_, Wire::Traffic::collective);
  for (int member = 0; member < group_.size(); ++member) {
    const std::int64_t length = unwanted_of(member);
    unwanted.recv({to, static_cast<std::size_t>(length)}, member);
    to += length;
  }
  unwanted.wait();
}

GroupAgreement::Header GroupAgreement::header_of(int member) const {
  Header header;
  std::memcpy(&header, place(member), sizeof header);
  return header;
}

// --- Between two --------------------------------------------------------------------------------

/** Of what two members bring, what is copied behind the header, and so is one message with it. Over
 * a connection more leaves from where it is, and with the header all the same. */
std::int64_t GroupAgreement::with_header(std::int64_t carried) const {
  if (carried <= kTogether) return carried;
  return group_.passes_on() ? 0 : std::min(carried, kFirst);
}

bool GroupAgreement::swap(Header header, const Brought& brought, const Merge& merge) {
  const int other = group_.peer(1);
  std::byte* const leaves = place(0);
  std::byte* const arrives = place(1);
  std::byte* const theirs = place(2);
  std::byte* const copy = theirs + most_carried();
  const std::byte* const own = brought.own.data();
  header.carried = brought.bytes_of(group_.position());
  const std::int64_t first = with_header(header.carried);
  const std::int64_t left = header.carried - first;
  std::memcpy(leaves, &header, sizeof header);
  copy_bytes(leaves + kHeaderBytes, own, first);
  const bool by_mpi = left > 0 && first > 0;  // which may still read it after a failure
  if (by_mpi) copy_bytes(copy, own + first, left);
  GroupBatch batch(group_, Wire::Traffic::collective);
  batch.keep(places_);
  // Over a connection at most kTogether bytes are one message with the header: see with_header().
  // More room than for what this member brings keeps long data from being read, and copied, along.
  const std::int64_t room =
      group_.passes_on() ? kHeaderBytes + std::max(kTogether, header.carried) : Wire::kPiece;
  batch.recv({arrives, static_cast<std::size_t>(std::min(room, Wire::kPiece))}, other);
  {
    std::optional<Held> together;
    if (left > 0) together.emplace(group_.wire());
    batch.send({leaves, static_cast<std::size_t>(kHeaderBytes + first)}, other);
    batch.send({by_mpi ? copy : own + first, static_cast<std::size_t>(left)}, other);
  }
  batch.wait_until([](int) { return true; });
  Header answer;
  std::memcpy(&answer, arrives, sizeof answer);
  const std::int64_t begun = with_header(answer.carried);
  batch.recv({theirs + begun, static_cast<std::size_t>(answer.carried - begun)}, other);
  batch.wait();
  last_ = other;
  if (answer.hash != header.hash) return false;
  if (!merge) return true;
  const bool is_whole = begun == answer.carried;
  if (!is_whole) copy_bytes(theirs, arrives + kHeaderBytes, begun);
  std::array<const void*, 2> parts{};
  parts[static_cast<std::size_t>(group_.position())] = own;
  parts[static_cast<std::size_t>(other)] = is_whole ? arrives + kHeaderBytes : theirs;
  merge(parts);
  return true;
}

// --- Dissemination ------------------------------------------------------------------------------

/**
 * What has come by then lies in the order of the members from this one on, so what a member sends
 * is the beginning of what it has. A member that knows of a difference sends on no more than that.
 * Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
 * communications in multiport message-passing systems", 1997.
 */
bool GroupAgreement::disseminate(Header header, const Brought& brought, const Merge& merge) {
  const int size = group_.size();
  std::byte* const leaves = place(0);
  std::byte* const arrives = place(1);
  std::byte* const have = place(2);
  // How many bytes the first `members` members from this one on bring.
  const auto bytes_of_first = [&](int members) {
    if (brought.only == Brought::kAll) return members * brought.each;
    return (brought.only - group_.position() + size) % size < members ? brought.each : 0;
  };
  copy_bytes(have, brought.own.data(), brought.bytes_of(group_.position()));
  for (int known = 1; known < size;) {
    const int more = std::min(known, size - known);
    const int source = group_.peer(known);
    const int target = group_.peer(size - known);
    header.carried = header.agreed != 0 ? bytes_of_first(more) : 0;
    const std::int64_t first = std::min(header.carried, kFirst);
    std::memcpy(leaves, &header, sizeof header);
    copy_bytes(leaves + kHeaderBytes, have, first);
    GroupBatch beginnings(group_, Wire::Traffic::collective);
    beginnings.keep(places_);
    beginnings.recv({arrives, static_cast<std::size_t>(Wire::kPiece)}, source);
    beginnings.send({leaves, static_cast<std::size_t>(kHeaderBytes + first)}, target);
    std::optional<GroupBatch> rests;  // of what is longer than that
    if (header.carried > first) {
      rests.emplace(group_, Wire::Traffic::collective);
      rests->keep(places_);
      rests->send({have + first, static_cast<std::size_t>(header.carried - first)}, target);
    }
    const auto since = group_.wire().now();
    beginnings.wait();

    Header theirs;
    std::memcpy(&theirs, arrives, sizeof theirs);
    const auto waited = static_cast<std::uint64_t>((group_.wire().now() - since).count());
    if (waited > header.waited) {  // for the source, unless it has waited itself meanwhile
      const bool itself = theirs.waited < waited / 2;
      header.waited = waited;
      header.late = itself ? source : theirs.late;
    }
    if (theirs.hash != header.hash || theirs.agreed == 0) header.agreed = 0;
    const std::int64_t begun = std::min(theirs.carried, kFirst);
    // Of what differs nothing is kept, but it has to be taken.
    std::byte* const to = header.agreed != 0 ? have + bytes_of_first(known) : nullptr;
    const std::int64_t left = theirs.carried - begun;
    const Scratch dropped(group_.wire().scratch(), to == nullptr ? left : 0);
    if (to != nullptr) copy_bytes(to, arrives + kHeaderBytes, begun);
    if (left > 0) {
      if (!rests) rests.emplace(group_, Wire::Traffic::collective);
      rests->keep(places_);
      rests->recv({to == nullptr ? dropped.data() : to + begun, static_cast<std::size_t>(left)},
                  source);
    }
    if (rests) rests->wait();
    known += more;
  }
  last_ = header.late;
  if (header.agreed == 0) return false;
  if (!merge) return true;
  RecycledVector<const void*> parts(static_cast<std::size_t>(size));
  for (int distance = 0; distance < size; ++distance) {
    parts[static_cast<std::size_t>(group_.peer(distance))] = have + bytes_of_first(distance);
  }
  merge(parts);
  return true;
}

}  // namespace tutti
