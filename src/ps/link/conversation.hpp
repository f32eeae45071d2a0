// What a worker and a server say to each other until they have met.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/waiter.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/place.hpp"

namespace tutti::ps {

/** Who connects says so first. Its terms follow. Plain bytes, the first of which never change. */
struct Hello {
  enum class Purpose : std::uint32_t {
    meeting,
    data,  ///< a second connection of a worker that has been let in, for frames
  };
  static constexpr std::array<char, 8> kMagic{'t', 'u', 't', 't', 'i', '-', 'p', 's'};
  static constexpr std::uint32_t kVersion = 1;
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::int32_t worker = -1;
  mpi::Token wanted{};  ///< the server's
  mpi::Token own{};     ///< random, one a worker: the server repeats it
  Place place{};
  Purpose purpose = Purpose::meeting;
  std::uint32_t list = 0;  ///< of which servers, if they are known by endpoints
  std::int64_t terms_bytes = 0;
};

/** The numbers of ranks and a text follow. Plain bytes. */
struct NoteHeader {
  enum class Kind : std::uint8_t {
    welcome,   ///< by the server; the text is the name of its memory, if that can be shared
    ready,     ///< by the worker, likewise; without such memory, it has a connection for data
    waiting,   ///< by the server: these ranks have not come
    start,     ///< all have come; the text is the greeting
    mismatch,  ///< by the server: it gives up, and says why; by the worker: another one has
    missing,   ///< it gives up: these ranks have not come
    stranger,  ///< by the server: that is what the worker is, and why
    last = stranger,
  };
  Kind kind{};
  mpi::Token echo{};  ///< the worker's
  std::int64_t ranks = 0;
  std::int64_t text_bytes = 0;
};

struct Note {
  NoteHeader::Kind kind{};
  std::string text;
  std::vector<int> ranks;
};

/** A connection on which nobody ever blocks: what cannot be sent yet is kept. */
class Conversation {
 public:
  explicit Conversation(mpi::Socket socket) : socket_(std::move(socket)) {}

  const mpi::Socket& socket() const { return socket_; }
  mpi::Socket release() { return std::move(socket_); }
  /** Whether bytes wait to be sent. */
  bool is_sending() const { return !out_.empty(); }

  void say(std::span<const std::byte> bytes);
  void say(const Note& note, const mpi::Token& echo);
  /** Sends what waits; false once the connection has ended. */
  bool flush();

  enum class Heard : std::uint8_t { all, too_little, ended };
  /** Whether the next `bytes` bytes have come: then they are heard(). */
  Heard hear(std::int64_t bytes);
  std::span<const std::byte> heard() const { return in_; }
  /** They have been understood. */
  void clear() { in_.clear(); }

  /** The next note, with this echo; nothing if it has not come as a whole. Sets `ended` if it never
   * will, or what has come is none. */
  std::optional<Note> next_note(const mpi::Token& echo, bool& ended);

 private:
  mpi::Socket socket_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

/** A value that the bytes at `offset` are, of which there are enough. */
template <class T>
T value_at(std::span<const std::byte> bytes, std::size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::array<std::byte, sizeof(T)> copy;
  const auto part = bytes.subspan(offset, sizeof(T));
  std::copy(part.begin(), part.end(), copy.begin());
  return std::bit_cast<T>(copy);
}

/** Texts that are longer are taken for a stranger's. */
inline constexpr std::int64_t kLongestText = std::int64_t{16} << 20;

/** When who waits for the others says in the log whom it misses, first and then. */
inline constexpr std::chrono::milliseconds kUntilALogLine{3000};
inline constexpr std::chrono::milliseconds kBetweenLogLines{30000};
/** How long who gives up goes on telling the others why. */
inline constexpr std::chrono::milliseconds kToTellAll{2000};
inline constexpr WaitPolicy kMeetingPolicy{.nap = std::chrono::milliseconds(50)};

}  // namespace tutti::ps
