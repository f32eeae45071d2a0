// Messages go through the sender's mailbox, piece by piece.
#include "comm/shm/mail.hpp"

#include <algorithm>
#include <string>

#include "base/memory.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

/** Pieces of a message; an empty one has one piece as well, to meet in. */
std::uint32_t pieces_of(std::int64_t bytes) {
  return static_cast<std::uint32_t>(
      std::max<std::int64_t>((bytes + Staging::kMail - 1) / Staging::kMail, 1));
}

}  // namespace

void Mail::send(const Call& call, int destination) {
  const ConstView in = call.in;
  host_.check_failure();
  Mailbox& box = host_.control().slot(host_.rank()).mailbox;
  box.offered = Signature::of(call);
  box.refused.store(0, std::memory_order_relaxed);
  box.destination.store(destination, std::memory_order_release);

  // Returns once the receiver has taken the first `count` pieces of all that was ever sent.
  const auto wait_until_taken = [&](std::uint32_t count) {
    const auto done = [&] { return box.taken.reached(count) || box.refused.load() != 0; };
    if (!done()) host_.wait_for(destination, box.taken.signal(), Wait::send, done);
    if (box.refused.load() == 0) return;
    const std::string text = describe_mismatch({host_.name_of(host_.rank()), box.offered},
                                               {host_.name_of(destination), box.wanted});
    host_.fail_mismatch(text);
    throw MismatchError(text);
  };
  const auto* data = static_cast<const std::byte*>(in.data);
  std::int64_t left = in.bytes();
  for (std::uint32_t piece = pieces_of(in.bytes()); piece > 0; --piece) {
    wait_until_taken(sent_ - 1);  // the memory of the last piece but one is free
    const std::int64_t length = std::min(left, Staging::kMail);
    auto& staging = host_.control().staging(host_.rank()).mail[sent_ & 1U];
    copy_bytes(staging.data(), data, length);
    data += length;
    left -= length;
    box.posted.publish(++sent_);
  }
  wait_until_taken(sent_);
  host_.check_own_loss();
}

void Mail::recv(const Call& call, int source) {
  const View out = call.out;
  host_.check_failure();
  Mailbox& box = host_.control().slot(source).mailbox;
  const auto next_piece = [&](std::uint32_t taken) {
    const auto done = [&] {
      return box.posted.reached(taken + 1) &&
             box.destination.load(std::memory_order_acquire) == host_.rank();
    };
    if (!done()) host_.wait_for(source, box.posted.signal(), Wait::recv, done);
  };
  std::uint32_t taken = 0;
  const auto message_here = [&] {
    taken = box.taken.value.load(std::memory_order_acquire);
    if (!box.posted.reached(taken + 1)) return false;
    if (box.destination.load(std::memory_order_acquire) != host_.rank()) return false;
    // Nothing was taken meanwhile: so what lies there is for the destination just read.
    return box.taken.value.load(std::memory_order_acquire) == taken;
  };
  if (!message_here()) host_.wait_for(source, box.posted.signal(), Wait::recv, message_here);

  const Signature wanted = Signature::of(call);
  if (box.offered.dtype != wanted.dtype || box.offered.count != wanted.count) {
    const std::string text = describe_mismatch({host_.name_of(source), box.offered},
                                               {host_.name_of(host_.rank()), wanted});
    box.wanted = wanted;
    box.refused.store(1);
    host_.fail_mismatch(text);
    throw MismatchError(text);
  }
  auto* data = static_cast<std::byte*>(out.data);
  std::int64_t left = out.bytes();
  for (std::uint32_t piece = pieces_of(out.bytes()); piece > 0; --piece) {
    next_piece(taken);
    const std::int64_t length = std::min(left, Staging::kMail);
    const auto& staging = host_.control().staging(source).mail[taken & 1U];
    copy_bytes(data, staging.data(), length);
    data += length;
    left -= length;
    box.taken.publish(++taken);
  }
  host_.check_own_loss();
}

}  // namespace tutti::shm
