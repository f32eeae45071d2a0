// Messages go through mailboxes and staging memory, piece by piece.
#include "comm/shm/mail.hpp"

#include <algorithm>

#include "base/memory.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {

// What is stored last tells the other side that the rest is there.

bool Mail::offer(int peer, const Offer& offer) {
  Mailbox& box = to(peer);
  if (box.seen.load(std::memory_order_acquire) != box.offered.load(std::memory_order_relaxed)) {
    return false;
  }
  box.offer.envelope = offer.envelope;
  if (offer.carries()) {
    copy_bytes(box.offer.data.data(), offer.data.data(), offer.envelope.bytes());
  }
  box.offered.store(offer.envelope.number, std::memory_order_release);
  ring(peer);
  return true;
}

bool Mail::collect(Inbox& inbox) {
  bool any = false;
  for (int peer = 0; peer < group_.size(); ++peer) {
    Mailbox& box = from(peer);
    const std::uint32_t offered = box.offered.load(std::memory_order_acquire);
    if (offered == box.seen.load(std::memory_order_relaxed)) continue;
    inbox.add(group_.name_of(peer), box.offer);
    const bool last = box.offer.envelope.last;
    box.seen.store(offered, std::memory_order_release);
    if (!last) ring(peer);  // for the next one
    any = true;
  }
  return any;
}

bool Mail::accept(int peer, const Envelope& wanted) {
  Mailbox& box = from(peer);
  if (box.answered.load(std::memory_order_acquire) !=
      box.accepted.load(std::memory_order_relaxed)) {
    return false;
  }
  box.wanted = wanted;
  box.accepted.store(wanted.number, std::memory_order_release);
  ring(peer);
  return true;
}

std::optional<Envelope> Mail::accepted(int peer, std::uint32_t number) {
  Mailbox& box = to(peer);
  if (box.accepted.load(std::memory_order_acquire) != number) return std::nullopt;
  const Envelope wanted = box.wanted;
  box.answered.store(number, std::memory_order_release);
  ring(peer);
  return wanted;
}

// --- Data ---------------------------------------------------------------------------------------

class Mail::Sending final : public Movement {
 public:
  Sending(Mail& mail, int peer, const ConstView& data)
      : mail_(mail),
        peer_(peer),
        data_(static_cast<const std::byte*>(data.data)),
        left_(data.bytes()) {}
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;
  ~Sending() override {
    if (mail_.staged_ == this) mail_.staged_ = nullptr;
  }

  bool progress() override {
    if (mail_.staged_ == nullptr) mail_.staged_ = this;
    if (mail_.staged_ != this) return false;
    Mailbox& box = mail_.to(peer_);
    const std::uint32_t taken = box.taken.load(std::memory_order_acquire);
    std::uint32_t posted = box.posted.load(std::memory_order_relaxed);
    bool moved = false;
    auto& pieces = mail_.group_.control().staging(mail_.group_.rank()).mail;
    for (; left_ > 0 && posted - taken < pieces.size(); moved = true) {
      const std::int64_t length = std::min(left_, Staging::kMail);
      copy_bytes(pieces[posted % pieces.size()].data(), data_, length);
      data_ += length;
      left_ -= length;
      box.posted.store(++posted, std::memory_order_release);
      mail_.ring(peer_);
    }
    done_ = left_ == 0 && taken == posted;
    return moved || done_;
  }
  bool done() const override { return done_; }

 private:
  Mail& mail_;
  int peer_;
  const std::byte* data_;
  std::int64_t left_;
  bool done_ = false;
};

class Mail::Receiving final : public Movement {
 public:
  Receiving(Mail& mail, int peer, const View& data)
      : mail_(mail), peer_(peer), data_(static_cast<std::byte*>(data.data)), left_(data.bytes()) {}

  bool progress() override {
    Mailbox& box = mail_.from(peer_);
    const auto& pieces = mail_.group_.control().staging(peer_).mail;
    std::uint32_t taken = box.taken.load(std::memory_order_relaxed);
    bool moved = false;
    for (; left_ > 0 && box.posted.load(std::memory_order_acquire) != taken; moved = true) {
      const std::int64_t length = std::min(left_, Staging::kMail);
      copy_bytes(data_, pieces[taken % pieces.size()].data(), length);
      data_ += length;
      left_ -= length;
      box.taken.store(++taken, std::memory_order_release);
      mail_.ring(peer_);
    }
    return moved;
  }
  bool done() const override { return left_ == 0; }

 private:
  Mail& mail_;
  int peer_;
  std::byte* data_;
  std::int64_t left_;
};

std::unique_ptr<Movement> Mail::send(int peer, const ConstView& data) {
  return std::make_unique<Sending>(*this, peer, data);
}

std::unique_ptr<Movement> Mail::receive(int peer, const View& data) {
  return std::make_unique<Receiving>(*this, peer, data);
}

// --- Waiting ------------------------------------------------------------------------------------

void Mail::finish(Transfers& transfers, Wait kind) {
  group_.check_failure();
  while (!transfers.done()) {
    bool moved = false;  // a look that has seen something is not the last one of a wait
    const std::function<bool()> moves = [&] { return moved = moved || transfers.progress(); };
    if (moves()) continue;
    const std::vector<int> awaited = transfers.awaited_by(*this);
    if (!awaited.empty()) {
      group_.wait_for_mail(kind, moves, awaited);
      continue;
    }
    using Senders = LocalGroup::Senders;
    const Senders senders = transfers.waits_for_any() ? Senders::any : Senders::only_self;
    const bool has_come = group_.wait_for_mail_of(senders, kind, moves);
    if (!has_come) throw CommunicationError(transfers.nothing_came(group_.timeout()));
  }
  group_.check_own_loss();
}

}  // namespace tutti::shm
