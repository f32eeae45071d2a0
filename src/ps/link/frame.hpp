// Frames on a connection between hosts: a head of fixed size, and a payload.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "comm/mpi/sockets/socket.hpp"
#include "ps/link/codec.hpp"

namespace tutti::ps {

/** The heads. Plain bytes; the length of what follows is a matter of both fields. */
struct RequestFrame {
  RequestHeader header;
  std::int64_t ids_bytes = 0;
};
struct ReplyFrame {
  ReplyHeader header;
  std::int64_t ids_bytes = 0;
};

/** How far a transfer has come: to its end, as far as is possible now, or the connection is over.
 */
enum class Moved : std::uint8_t { all, some, ended };

/** Bytes of several places on their way over a socket that never blocks. */
class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(std::span<const iovec> pieces);

  /** Go on; `budget` is charged with what has moved, and when it is spent that is all for now.
   * `error` is set when the connection is over: to 0 where the other side has closed it. */
  Moved send(const mpi::Socket& socket, std::int64_t& budget, int& error);
  Moved receive(const mpi::Socket& socket, std::int64_t& budget, int& error);

 private:
  template <class Call>
  Moved move(const Call& call, std::int64_t& budget, int& error);

  static constexpr std::size_t kMostPieces = 4;
  std::array<iovec, kMostPieces> pieces_{};
  std::size_t at_ = kMostPieces;  // the first that has not moved as a whole
};

/** A frame that is sent. */
template <class Head>
class OutgoingFrame {
 public:
  /** What it holds `payload` by is kept until it has been sent. */
  OutgoingFrame(Head head, const PayloadShape& shape, PayloadMemory payload, WireFormat wire)
      : head_(head), memory_(std::move(payload)), payload_(shape, memory_.bytes(), wire) {
    head_.ids_bytes = payload_.ids_bytes();
    const auto pieces = payload_.pieces();
    transfer_ = Transfer(std::array{iovec{&head_, sizeof head_}, pieces[0], pieces[1], pieces[2]});
  }
  OutgoingFrame(const OutgoingFrame&) = delete;
  OutgoingFrame& operator=(const OutgoingFrame&) = delete;
  ~OutgoingFrame() = default;

  std::int64_t payload_bytes() const { return head_.header.payload_bytes; }
  Moved send(const mpi::Socket& socket, std::int64_t& budget, int& error) {
    return transfer_.send(socket, budget, error);
  }

 private:
  Head head_;
  PayloadMemory memory_;
  TravellingPayload payload_;
  Transfer transfer_;
};

/** Frames that are received, one after the other. */
template <class Head>
class FrameReader {
 public:
  /** Goes on until a frame is there as a whole, or as far as is possible now. shape(head) says what
   * its payload consists of, and throws CorruptMessage, as this does. */
  template <class Shape>
  Moved receive(const mpi::Socket& socket, std::int64_t& budget, int& error, WireFormat wire,
                const Shape& shape) {
    if (!body_) {
      const Moved moved = transfer_.receive(socket, budget, error);
      if (moved != Moved::all) return moved;
      body_.emplace(shape(head_), head_.ids_bytes, wire);
      transfer_ = Transfer(body_->pieces());
    }
    return transfer_.receive(socket, budget, error);
  }
  const Head& head() const { return head_; }
  /** Takes the payload of a frame that is there. Throws CorruptMessage. */
  PayloadMemory take() {
    PayloadMemory payload = body_->decode();
    body_.reset();
    transfer_ = Transfer(std::array{iovec{&head_, sizeof head_}});
    return payload;
  }

  FrameReader() = default;
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;
  ~FrameReader() = default;

 private:
  Head head_;
  std::optional<TravellingPayload> body_;
  Transfer transfer_{std::array{iovec{&head_, sizeof head_}}};
};

}  // namespace tutti::ps
