// The layout of the control segment: what the ranks of a host share.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/envelope.hpp"
#include "comm/failure.hpp"
#include "comm/own_waits.hpp"
#include "comm/reach.hpp"
#include "comm/record/journal.hpp"
#include "comm/record/ring.hpp"
#include "comm/shm/memory/flag.hpp"
#include "comm/shm/memory/process.hpp"
#include "comm/signature.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::shm {

/** Where an argument lies, as other ranks can find it. */
struct Location {
  static constexpr std::int32_t kPrivate = -1;
  std::int32_t region = kPrivate;  ///< number of the symmetric allocation
  std::int64_t offset = 0;         ///< bytes from the start of this rank's part of it
};

/** What a rank brings to a task, beside its stamp. */
struct Request {
  Location in;
  Location out;
  std::uint64_t in_address = 0;  ///< in this rank's process
  std::uint64_t out_address = 0;
  std::uint16_t in_place = 0;
  std::uint16_t reaches_all = 0;  ///< see SingleCopy
  std::uint32_t cost = 0;         ///< see Choices::noted()
};

/** How a rank comes to a meeting: one cache line, whose number is written last. */
struct alignas(64) Arrival {
  static constexpr std::int64_t kData = 56;

  std::array<std::byte, kData> data;  ///< the contribution, if it fits; otherwise a Request
  std::uint32_t stamp;                ///< whether the ranks ask for the same
  std::atomic<std::uint32_t> number;  ///< of the meeting
};
static_assert(sizeof(Arrival) == 64 && sizeof(Request) <= Arrival::kData);

/** The messages from one rank to another: the sender writes the first half, the receiver the
 * second. Numbers are those of messages; data move in pieces through the sender's staging memory.
 */
struct alignas(128) Mailbox {
  Offer offer;
  std::atomic<std::uint32_t> offered;   ///< the message that `offer` is about
  std::atomic<std::uint32_t> answered;  ///< the last whose answer the sender has read
  std::atomic<std::uint32_t> posted;    ///< pieces that the sender has put in

  alignas(128) Envelope wanted;
  std::atomic<std::uint32_t> seen;      ///< the last offer that the receiver has read
  std::atomic<std::uint32_t> accepted;  ///< the message in whose place `wanted` is
  std::atomic<std::uint32_t> taken;     ///< pieces that the receiver has taken out
};

/** The kinds of waits that a rank can be in at the same time. */
enum class Wait : std::uint8_t { collective, send, recv };
inline constexpr std::size_t kWaitKinds = 3;

/** Values of RankSlot::waiting_for that are not ranks. */
inline constexpr std::int32_t kNotWaiting = -1;
inline constexpr std::int32_t kWaitingElsewhere = -2;  ///< for a rank of another host

struct alignas(128) RankSlot {
  /** kGaveUp: before all had met, and not since one of them is lost. */
  enum State : std::uint32_t { kFree, kClaimed, kJoined, kLeft, kGaveUp };

  /** By the parity of the meeting's number: nobody is two meetings ahead. Two lines apart,
   * or one would be fetched along with the other. */
  struct alignas(128) Place {
    Arrival arrival;
  };
  std::array<Place, 2> places;
  alignas(128) std::atomic<std::uint32_t> arrival_sleepers;
  Flag phase;   ///< synchronisations within collectives that this rank has reached
  Flag staged;  ///< pieces that this rank has put into its staging memory
  Flag taken;   ///< pieces of all ranks that it has worked off
  Flag mail;    ///< grows with whatever others do about messages to or from this rank
  Flag noted;   ///< notes of the host that this rank has written or read: see LocalNotes
  std::atomic<std::uint32_t> state;
  ProcessId process;
  ProcessNumber process_number;
  std::int32_t thread;   ///< that made the communicator: tells ranks of one process apart
  cpu_set_t processors;  ///< where this rank may run
  std::uint64_t token;   ///< of SingleCopy, and where it lies in this rank's process
  std::uint64_t token_address;
  // For finding out who is to blame when a deadline passes.
  std::atomic<std::uint32_t> heartbeat;  ///< grows while this rank waits
  std::array<std::atomic<std::int32_t>, kWaitKinds> waiting_for;
  // Whom this rank waited for between hosts, for those who waited for it meanwhile, and from when
  // to when, in ticks of record::TickClock: counts for call `delayed_in`, 0 while it is written.
  std::atomic<std::uint64_t> delayed_in;
  std::atomic<std::int32_t> delayed_by;
  std::atomic<std::uint64_t> delayed_since;
  std::atomic<std::uint64_t> delayed_until;
  Reach reach;
  FailureReport failure;  ///< counts if ControlHeader::failed_by names this rank

  bool has_left() const { return state.load(std::memory_order_acquire) >= kLeft; }
  Arrival& arrival(std::uint64_t number) { return places[number & 1U].arrival; }
  Signal arrival_signal(std::uint64_t number) { return {arrival(number).number, arrival_sleepers}; }
};

/** The start of the segment; `size` RankSlots follow, a row of Control::waits() for each rank, the
 * rings of the flight recorders, a row of mailboxes for each sender, the staging memory, then the
 * notebooks. */
struct alignas(128) ControlHeader {
  static constexpr std::uint32_t kReady = 0x74757474;  // "tutt"

  std::atomic<std::uint32_t> ready;
  std::int32_t size;
  std::array<std::byte, UniqueId::kBytes> ticket;
  Flag joined;  ///< ranks that have joined
  /** Whose report of a failure counts, one more than that rank: the report is complete when its
   * rank enters itself, and only the first succeeds. 0 if nothing has failed. */
  alignas(128) std::atomic<std::int32_t> failed_by;
  std::atomic<std::int32_t> heard_of_failure;  ///< others that know of it: the first tell all
  std::atomic<bool> told_flight;  ///< a rank has told what the ranks did before the failure
  std::atomic<bool> told_late;    ///< a rank has told who keeps the others waiting
  /** Those of all hosts, with each other: told by this host's before ranks agree for the first
   * time.
   */
  std::atomic<bool> leaders_are_connected;
};

/** Staging memory of one rank: what it lends to the others during a collective. */
struct Staging {
  static constexpr std::int64_t kOneShot = std::int64_t{64} * 1024;  ///< one-shot messages
  static constexpr std::int64_t kPiece = std::int64_t{256} * 1024;   ///< pieces of longer ones
  static constexpr std::uint32_t kSlots = 3;                         ///< pieces under way
  static constexpr std::int64_t kMail = std::int64_t{64} * 1024;     ///< pieces between two ranks

  alignas(4096) std::array<std::array<std::byte, kOneShot>, 2> small;
  std::array<std::array<std::byte, kPiece>, kSlots> in;
  std::array<std::array<std::byte, kPiece>, kSlots> out;
  std::array<std::array<std::byte, kMail>, 2> mail;
};

/** What one rank lets the others of its host know: what it asked for in its last calls (see
 * Signatures), and notes that they read when they come to it (see LocalNotes). */
struct Notebook {
  static constexpr std::uint64_t kCalls = 64;
  static constexpr std::uint32_t kNotes = 16;

  struct Request {
    std::atomic<std::uint64_t> history;  ///< a hash of this call and all before it
    Signature signature;
  };
  /** Of what is short, all is in its first cache line. */
  struct alignas(64) Entry {
    static constexpr std::int64_t kMost = std::int64_t{16} * 1024;  ///< bytes of data

    std::uint64_t hash;       ///< of the call that the data are of
    record::Absence absence;  ///< of their author before that, as their writer has noticed it
    alignas(16) std::array<std::byte, kMost> data;
  };

  alignas(4096) std::atomic<std::uint64_t> calls;  ///< the last of the requests
  std::array<Request, kCalls> requests;            ///< by the number of the call
  alignas(4096) std::array<Entry, kNotes> notes;   ///< by their number

  Request& request(std::uint64_t call) { return requests[call % kCalls]; }
  Entry& note(std::uint32_t number) { return notes[number % kNotes]; }
};

/** A view of a mapped control segment. */
class Control {
 public:
  Control() = default;
  Control(std::byte* base, int size) : base_(base), size_(size) {}

  static std::int64_t bytes_for(int size) {
    return notebook_offset(size) + size * static_cast<std::int64_t>(sizeof(Notebook));
  }
  ControlHeader& header() const { return *reinterpret_cast<ControlHeader*>(base_); }
  RankSlot& slot(int rank) const { return *reinterpret_cast<RankSlot*>(base_ + slot_offset(rank)); }
  /** Whether `rank` waits in another communicator for `peer`, or, if that is `size`, for a rank
   * that is not a member of this one. */
  std::atomic<bool>& waits(int rank, int peer) const {
    return reinterpret_cast<std::atomic<bool>*>(base_ +
                                                slot_offset(size_))[rank * (size_ + 1) + peer];
  }
  record::Ring& ring(int rank) const {
    return *reinterpret_cast<record::Ring*>(base_ + ring_offset(size_) +
                                            rank * static_cast<std::int64_t>(sizeof(record::Ring)));
  }
  Mailbox& mailbox(int sender, int receiver) const {
    return *reinterpret_cast<Mailbox*>(base_ + mailbox_offset(size_) +
                                       (std::int64_t{sender} * size_ + receiver) *
                                           static_cast<std::int64_t>(sizeof(Mailbox)));
  }
  Staging& staging(int rank) const {
    return *reinterpret_cast<Staging*>(base_ + staging_offset(size_) +
                                       rank * static_cast<std::int64_t>(sizeof(Staging)));
  }
  Notebook& notebook(int rank) const {
    return *reinterpret_cast<Notebook*>(base_ + notebook_offset(size_) +
                                        rank * static_cast<std::int64_t>(sizeof(Notebook)));
  }

 private:
  static std::int64_t slot_offset(int rank) {
    return static_cast<std::int64_t>(sizeof(ControlHeader)) +
           rank * static_cast<std::int64_t>(sizeof(RankSlot));
  }
  static std::int64_t ring_offset(int size) {
    const std::int64_t waits = std::int64_t{size} * (size + 1);
    return on_pages(slot_offset(size) + waits);
  }
  static std::int64_t mailbox_offset(int size) {
    return on_pages(ring_offset(size) + size * static_cast<std::int64_t>(sizeof(record::Ring)));
  }
  static std::int64_t staging_offset(int size) {
    const std::int64_t pairs = std::int64_t{size} * size;
    return on_pages(mailbox_offset(size) + pairs * static_cast<std::int64_t>(sizeof(Mailbox)));
  }
  static std::int64_t notebook_offset(int size) {
    return staging_offset(size) + size * static_cast<std::int64_t>(sizeof(Staging));
  }
  static std::int64_t on_pages(std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  std::byte* base_ = nullptr;
  int size_ = 0;
};

}  // namespace tutti::shm
