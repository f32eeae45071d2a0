// Fuzzes what workers and servers of different hosts send each other: requests, replies, and the
// notes of their meeting.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "fuzz/fuzzer.hpp"
#include "ps/link/conversation.hpp"
#include "ps/link/frame.hpp"
#include "ps/link/terms.hpp"
#include "tutti/error.hpp"

namespace tutti::fuzz {
namespace {

using ps::Conversation;
using ps::FrameReader;
using ps::join_terms;
using ps::Moved;
using ps::Note;
using ps::NoteHeader;
using ps::Outcome;
using ps::OutgoingFrame;
using ps::PayloadMemory;
using ps::PayloadShape;
using ps::ReplyFrame;
using ps::ReplyHeader;
using ps::RequestFrame;
using ps::RequestHeader;
using ps::RequestKind;
using ps::RowFormat;
using ps::shape_of;
using ps::split_terms;
using ps::WireFormat;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;  // of memory for a payload
const mpi::Token kEcho{std::byte{1}, std::byte{2}};

/** In front of the bytes that arrive. */
struct Head {
  std::uint8_t what = 0;   ///< modulo 3: requests, replies, or notes
  std::uint8_t wire = 0;   ///< modulo 3: a WireFormat
  std::uint8_t asked = 0;  ///< of replies: what they are to
  std::uint8_t first = 0;  ///< bytes that arrive before the others
};

RowFormat format_of(const Head& head) {
  return {{4, 1, 16}, static_cast<WireFormat>(head.wire % 3)};
}

RequestHeader asked_of(const Head& head) {
  RequestHeader asked;
  asked.kind = static_cast<RequestKind>(head.asked % 13);
  asked.table = head.asked / 13 % 3;
  return asked;
}

/** A connection, both ends of it. */
std::pair<mpi::Socket, mpi::Socket> connection() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw SystemError("cannot make a connection", errno);
  }
  return {mpi::Socket(ends[0]), mpi::Socket(ends[1])};
}

/** What has been sent over a connection. */
void append_sent(Input& input, const mpi::Socket& received) {
  std::array<std::uint8_t, 4096> bytes;
  ssize_t count = 0;
  while ((count = ::recv(received.get(), bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0) {
    input.insert(input.end(), bytes.begin(), bytes.begin() + count);
  }
}

template <class FrameHead>
void append_frame(Input& input, const FrameHead& head, const PayloadShape& shape, WireFormat wire) {
  PayloadMemory payload(shape.bytes());
  std::uint64_t id = 100;
  for (std::int64_t at = 0; at < shape.bytes(); ++at) {
    payload.bytes()[static_cast<std::size_t>(at)] = static_cast<std::byte>(at % 63);
  }
  for (std::int64_t i = 0; i < shape.ids; ++i, id += 37) {
    std::memcpy(payload.bytes().data() + i * 8, &id, sizeof id);
  }
  auto [from, to] = connection();
  OutgoingFrame<FrameHead> frame(head, shape, std::move(payload), wire);
  std::int64_t budget = kMostBytes;
  int error = 0;
  expect(frame.send(from, budget, error) == Moved::all, "a seed is too long");
  append_sent(input, to);
}

RequestHeader request(RequestKind kind, std::int32_t table, std::int64_t count,
                      std::int64_t payload_bytes) {
  RequestHeader header;
  header.kind = kind;
  header.table = table;
  header.count = count;
  header.payload_bytes = payload_bytes;
  return header;
}

Input requests(std::uint8_t wire) {
  const Head head{0, wire, 0, 9};
  Input input;
  append(input, head);
  for (const RequestHeader& header :
       {request(RequestKind::push_rows, 0, 5, 120), request(RequestKind::look_up, 2, 33, 264),
        request(RequestKind::push_dense, -1, 10, 48), request(RequestKind::set_dense, -1, 3, 12),
        request(RequestKind::add_rows, 1, 0, 0), request(RequestKind::stop, -1, 0, 0)}) {
    append_frame(input, RequestFrame{header, 0}, shape_of(header, format_of(head)),
                 format_of(head).wire);
  }
  return input;
}

Input replies(std::uint8_t wire, RequestKind kind, std::int64_t payload_bytes) {
  const Head head{1, wire, static_cast<std::uint8_t>(kind), 30};
  Input input;
  append(input, head);
  for (const Outcome outcome : {Outcome::done, Outcome::refused}) {
    const ReplyHeader reply{outcome, -1, payload_bytes};
    append_frame(input, ReplyFrame{reply, 0}, shape_of(reply, asked_of(head), format_of(head)),
                 format_of(head).wire);
  }
  return input;
}

Input notes() {
  Input input;
  append(input, Head{2, 0, 0, 70});
  auto [from, to] = connection();
  Conversation talk(std::move(from));
  talk.say({NoteHeader::Kind::welcome, "/tutti-0123456789abcdef", {}}, kEcho);
  talk.say({NoteHeader::Kind::waiting, "worker 1, worker 2", {1, 2}}, kEcho);
  talk.say({NoteHeader::Kind::start, "hello", {}}, kEcho);
  append_sent(input, to);
  return input;
}

}  // namespace

std::vector<Input> seeds() {
  return {requests(0),
          requests(1),
          replies(0, RequestKind::look_up, 640),
          replies(2, RequestKind::look_up, 64),
          replies(1, RequestKind::pull_changed, 240),
          replies(0, RequestKind::pull_dense, 1000),
          notes()};
}

void mend(Input& /*input*/) {}

namespace {

/** Receives frames until there are no more. */
template <class FrameHead>
void read_frames(const mpi::Socket& socket, FrameReader<FrameHead>& reader, const Head& head) {
  const RowFormat format = format_of(head);
  const auto shape = [&](const FrameHead& frame) {
    if constexpr (std::is_same_v<FrameHead, RequestFrame>) {
      return shape_of(frame.header, format, kMostBytes);
    } else {
      return shape_of(frame.header, asked_of(head), format, kMostBytes);
    }
  };
  while (true) {
    std::int64_t budget = kMostBytes;
    int error = 0;
    if (reader.receive(socket, budget, error, format.wire, shape) != Moved::all) return;
    const PayloadMemory payload = reader.take();
    expect(std::ssize(payload.bytes()) == reader.head().header.payload_bytes,
           "a payload of another length");
    unsigned sum = 0;
    for (const std::byte byte : payload.bytes()) sum += std::to_integer<unsigned>(byte);
    expect(sum < 256U * kMostBytes, "a sum of bytes");  // all of them can be read
  }
}

void read_notes(Conversation& talk) {
  bool ended = false;
  while (const std::optional<Note> note = talk.next_note(kEcho, ended)) {
    expect(!ended, "a note after the end");
    expect(join_terms(split_terms(note->text)).size() <= note->text.size() + 1, "longer terms");
  }
}

void decode(std::span<const std::uint8_t> data) {
  Parts parts(data);
  const auto head = parts.number<Head>();
  auto [from, to] = connection();
  FrameReader<RequestFrame> requests;
  FrameReader<ReplyFrame> replies;
  Conversation talk(std::move(to));
  for (const auto& bytes : {parts.take(head.first), parts.rest()}) {
    ::send(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (head.what % 3 == 0) read_frames(talk.socket(), requests, head);
    if (head.what % 3 == 1) read_frames(talk.socket(), replies, head);
    if (head.what % 3 == 2) read_notes(talk);
  }
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  tutti::fuzz::decode({data, size});
  return 0;
} catch (const tutti::CommunicationError& error) {
  return tutti::fuzz::refused(error);
}
