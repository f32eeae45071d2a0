// Compares what comes with the call under way.
#include "comm/hosts/group/notes.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "base/finally.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {
namespace {

/** How long a note is waited for before it is asked for. */
constexpr std::chrono::milliseconds kPatience{30};

/** Whether two ranks ask for the same now, whatever they did before. */
bool are_alike(Signature one, const Signature& other) {
  one.before = other.before;
  return one.hash() == other.hash();
}

template <class Note>
Note header_of(const std::byte* note) {
  Note header;
  std::memcpy(&header, note, sizeof header);
  return header;
}

}  // namespace

void Notes::begin(const Signature& signature, const Signature& before,
                  std::span<const int> awaited) {
  const std::lock_guard lock(mutex_);
  signature_ = signature;
  before_ = before;
  awaited_.assign(awaited.begin(), awaited.end());
}

std::int64_t Notes::write(std::byte* note, std::span<const std::byte> data,
                          std::chrono::microseconds away) {
  constexpr std::int64_t kLongest = std::numeric_limits<std::uint32_t>::max();
  const auto told = std::clamp<std::int64_t>(away.count(), 0, kLongest);
  const Note header{signature_, before_, std::ssize(data), wire_.rank(),
                    static_cast<std::uint32_t>(told)};
  std::memcpy(note, &header, sizeof header);
  if (!data.empty()) std::memcpy(note + sizeof header, data.data(), data.size());
  const auto bytes = static_cast<std::int64_t>(sizeof header + data.size());
  return data.empty() ? bytes + lengthen(note + bytes) : bytes;
}

std::int64_t Notes::lengthen(std::byte* end) {
  constexpr std::int64_t kOneIn = 16;
  const std::int64_t number = lengthened_++ % kOneIn;
  const std::int64_t bytes = number == 0 ? Wire::kSpare : 8 * (number % 2);
  std::memset(end, 0, static_cast<std::size_t>(bytes));
  return bytes;
}

std::chrono::microseconds Notes::away_in(const std::byte* note) {
  return std::chrono::microseconds(header_of<Note>(note).away);
}

// --- Comparing ----------------------------------------------------------------------------------

Notes::Fit Notes::examine(const Note& note, int source) const {
  if (note.signature.sequence > signature_.sequence) return Fit::early;
  if (awaits(source) && note.signature.hash() == signature_.hash()) return Fit::awaited;
  refuse(note);
}

/** In a call of a rank that waits for this one's note. */
void Notes::examine_question(const Note& note) const {
  for (const Signature& own : {signature_, before_}) {
    if (note.signature.sequence == own.sequence && note.signature.hash() != own.hash()) {
      refuse(note);
    }
  }
}

void Notes::refuse(const Note& note) const {
  std::array<RankSignature, 2> both{{{note.author, note.signature}, {wire_.rank(), signature_}}};
  if (note.signature.sequence == before_.sequence) {
    both[1].signature = before_;
  } else if (note.before.sequence == signature_.sequence) {
    both[0].signature = note.before;
  } else if (are_alike(note.signature, signature_)) {
    both[0].signature = note.before;
    both[1].signature = before_;
  }
  if (both[1].rank < both[0].rank) std::swap(both[0], both[1]);
  throw OneSidedMismatch(describe_mismatch(both));
}

// --- Taking -------------------------------------------------------------------------------------

bool Notes::take_early(std::byte* room) {
  for (auto one = early_.begin(); one != early_.end(); ++one) {
    const Note note = header_of<Note>(one->message->data());
    if (examine(note, one->source) == Fit::early) {
      if (awaits(one->source)) refuse(note);
      continue;
    }
    std::memcpy(room, one->message->data(), one->message->size());
    passed_on_ = std::move(one->passed_on);
    has_taken(one->source);
    early_.erase(one);
    return true;
  }
  return false;
}

void Notes::has_taken(int source) {
  std::erase(awaited_, source);
  taken_from_ = source;
}

void Notes::keep(const std::byte* note, int source) {
  using Bytes = RecycledVector<std::byte>;
  const auto* const end = note + sizeof(Note) + header_of<Note>(note).carried;
  early_.push_back(
      {source, std::allocate_shared<const Bytes>(RecyclingAllocator<Bytes>(), note, end), {}});
}

bool Notes::take_awaited(std::byte* room) {
  for (const int source : awaited_) {
    if (!wire_.take(room, Wire::kShort, Wire::Traffic::note, source)) continue;
    wire_.note_received(source, Wire::Traffic::note);
    const Note note = header_of<Note>(room);
    if (examine(note, source) == Fit::early) refuse(note);
    passed_on_.reset();
    has_taken(source);
    return true;
  }
  return false;
}

void Notes::hear_questions() {
  Note note;
  auto* const bytes = reinterpret_cast<std::byte*>(&note);
  while (const auto source =
             wire_.take(bytes, sizeof note, Wire::Traffic::question, Wire::kAnybody)) {
    wire_.note_received(*source, Wire::Traffic::question);
    early_questions_.push_back(note);
  }
  for (const Note& question : early_questions_) examine_question(question);
  std::erase_if(early_questions_, [this](const Note& question) {
    return question.signature.sequence <= signature_.sequence;
  });
}

/** Of all that are awaited. Without the lock: who finds that the last one has failed looks around,
 * and so at notes. */
void Notes::ask() {
  if (question_) question_->progress();  // the last one: the note may have come before it had left
  const auto note = std::make_shared<const Note>(Note{signature_, before_, 0, wire_.rank(), 0});
  if (!question_ || question_->done()) question_.emplace(wire_, Wire::Traffic::question);
  question_->keep(note);
  for (const int source : awaited_) question_->send(note.get(), sizeof *note, source);
}

Notes::Taken Notes::wait(std::byte* note) {
  const auto taken = [this, note] {
    const std::int64_t carried = header_of<Note>(note).carried;
    return Taken{taken_from_, static_cast<std::int64_t>(sizeof(Note)) + carried};
  };
  {
    const std::lock_guard lock(mutex_);
    if (take_early(note) || take_awaited(note)) return taken();
    waits_ = true;
  }
  const Finally end([this] {
    const std::lock_guard lock(mutex_);
    waits_ = false;
  });
  const auto since = wire_.now();
  bool asked = false;
  std::unique_ptr<Wire::Lookout> lookout;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (take_awaited(note)) break;
    }
    const auto waited = wire_.now() - since;
    if (!wire_.pause(waited, Wire::Side::collective)) continue;
    InterruptCheck::poll();
    {
      const std::lock_guard lock(mutex_);
      hear_questions();
      take_all();
      if (take_early(note)) break;
    }
    if (waited >= kPatience && !std::exchange(asked, true)) ask();
    if (question_) question_->progress();
    if (!lookout) lookout = wire_.look_out(Wire::Side::collective, wire_.timeout());
    lookout->look(awaited_);
  }
  return taken();
}

Notes::Early* Notes::following(const Note& note) {
  const auto follows = [&](const Early& one) {
    const Note next = header_of<Note>(one.message->data());
    const Signature& signature = next.signature;
    return one.source == taken_from_ && signature.sequence == note.signature.sequence + 1 &&
           signature.operation == note.signature.operation &&
           signature.root == note.signature.root && next.author == note.author &&
           next.carried == signature.count * size_of(signature.dtype);
  };
  const auto found = std::find_if(early_.begin(), early_.end(), follows);
  return found == early_.end() ? nullptr : &*found;
}

Notes::Next Notes::next(const std::byte* note) {
  const std::lock_guard lock(mutex_);
  const Note header = header_of<Note>(note);
  Early* found = following(header);
  if (found == nullptr && early_of(taken_from_) < kMostEarly &&
      wire_.has_read(taken_from_, Wire::Traffic::note)) {
    std::array<std::byte, Wire::kShort> room;
    if (wire_.take(room.data(), Wire::kShort, Wire::Traffic::note, taken_from_)) {
      wire_.note_received(taken_from_, Wire::Traffic::note);
      keep(room.data(), taken_from_);
      found = following(header);
    }
  }
  if (found == nullptr) return {};
  found->passed_on = std::make_unique<Batch>(wire_, Wire::Traffic::note);
  found->passed_on->keep(found->message);
  return {*found->message, found->passed_on.get()};
}

std::size_t Notes::early_of(int source) const {
  const auto of_source = [source](const Early& one) { return one.source == source; };
  return static_cast<std::size_t>(std::count_if(early_.begin(), early_.end(), of_source));
}

void Notes::take_all() {
  std::array<std::byte, Wire::kShort> room;
  std::erase_if(full_, [this](int source) { return early_of(source) < kMostEarly; });
  while (const auto source =
             wire_.take(room.data(), Wire::kShort, Wire::Traffic::note, Wire::kAnybody, full_)) {
    wire_.note_received(*source, Wire::Traffic::note);
    keep(room.data(), *source);
    if (early_of(*source) >= kMostEarly) full_.push_back(*source);
  }
  for (const Early& one : early_) {
    examine(header_of<Note>(one.message->data()), one.source);
  }
}

/** Without the lock, as in ask(). */
void Notes::end(bool may_call) noexcept {
  RecycledVector<Early> early;
  {
    const std::lock_guard lock(mutex_);
    early.swap(early_);
  }
  try {
    if (may_call && question_) question_->progress();
    for (const Early& one : early) {
      if (may_call && one.passed_on) one.passed_on->progress();
    }
  } catch (const std::exception&) {
    // Of a loss: what has not left is abandoned.
  }
  question_.reset();
  passed_on_.reset();
}

void Notes::look() {
  const std::lock_guard lock(mutex_);
  if (waits_) return;  // and looks itself
  hear_questions();
  // One that is awaited by now is so by this thread's own call, which has not come to its wait.
  take_all();
}

}  // namespace tutti
