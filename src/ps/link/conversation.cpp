// Buffers of a connection, and notes in them.
#include "ps/link/conversation.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace tutti::ps {
namespace {

constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;

bool would_block() { return errno == EAGAIN || errno == EINTR; }

bool is_sound(const NoteHeader& header, const mpi::Token& echo) {
  return header.kind <= NoteHeader::Kind::last && header.echo == echo && header.ranks >= 0 &&
         header.ranks <= kMostRanks && header.text_bytes >= 0 && header.text_bytes <= kLongestText;
}

}  // namespace

void Conversation::say(std::span<const std::byte> bytes) {
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  flush();
}

void Conversation::say(const Note& note, const mpi::Token& echo) {
  const NoteHeader header{note.kind, echo, std::ssize(note.ranks), std::ssize(note.text)};
  const auto add = [this](std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  };
  add(mpi::bytes_of(header));
  add(std::as_bytes(std::span(note.ranks)));
  add(std::as_bytes(std::span(note.text)));
  flush();
}

bool Conversation::flush() {
  while (!out_.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return would_block();
    out_.erase(out_.begin(), out_.begin() + sent);
  }
  return true;
}

Conversation::Heard Conversation::hear(std::int64_t bytes) {
  // Not more than has come is taken memory for, whatever the other side says that there will be.
  constexpr std::size_t kPiece = 65536;
  const auto wanted = static_cast<std::size_t>(bytes);
  while (in_.size() < wanted) {
    const std::size_t before = in_.size();
    in_.resize(before + std::min(kPiece, wanted - before));
    const ssize_t came =
        ::recv(socket_.get(), in_.data() + before, in_.size() - before, MSG_DONTWAIT);
    in_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(came, 0)));
    if (came < 0 && would_block()) return Heard::too_little;
    if (came <= 0) return Heard::ended;
  }
  return Heard::all;
}

std::optional<Note> Conversation::next_note(const mpi::Token& echo, bool& ended) {
  Heard heard = hear(sizeof(NoteHeader));
  if (heard == Heard::all) {
    const auto header = value_at<NoteHeader>(in_, 0);
    if (!is_sound(header, echo)) {
      ended = true;
      return std::nullopt;
    }
    const std::int64_t ranks_bytes = header.ranks * static_cast<std::int64_t>(sizeof(int));
    heard = hear(static_cast<std::int64_t>(sizeof header) + ranks_bytes + header.text_bytes);
    if (heard == Heard::all) {
      Note note{header.kind, {}, {}};
      for (std::int64_t i = 0; i < header.ranks; ++i) {
        note.ranks.push_back(
            value_at<int>(in_, sizeof header + static_cast<std::size_t>(i) * sizeof(int)));
      }
      const auto* text = reinterpret_cast<const char*>(in_.data() + sizeof header + ranks_bytes);
      note.text.assign(text, static_cast<std::size_t>(header.text_bytes));
      clear();
      return note;
    }
  }
  ended = ended || heard == Heard::ended;
  return std::nullopt;
}

}  // namespace tutti::ps
