// Posts messages in pieces, and waits for them with an eye on the peers.
#include "comm/batch.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/finally.hpp"
#include "comm/signature.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {

Batch::~Batch() {
  if (posted_.empty()) return;
  std::size_t receives = 0;  // stand first then
  for (std::size_t i = 0; i < posted_.size(); ++i) {
    if (posted_[i] == Wire::kEnded) continue;  // as some of a failed progress() have
    if (pieces_[i].receives) {
      std::swap(posted_[receives], posted_[i]);
      std::swap(peers_[receives], peers_[i]);
      std::swap(pieces_[receives++], pieces_[i]);
    }
  }
  for (std::size_t i = receives; i < posted_.size(); ++i) {
    if (posted_[i] != Wire::kEnded) wire_.note_abandoned(peers_[i], traffic_);
  }
  const std::span all(posted_);
  wire_.abandon(traffic_, all.first(receives), all.subspan(receives), kept_);
}

void Batch::send(const void* data, std::int64_t bytes, int destination) {
  // It is only read.
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
  post({begin, bytes}, destination, piece_of(bytes, destination, false), Wire::kPosted);
}

void Batch::recv(void* data, std::int64_t bytes, int source) {
  auto* const begin = static_cast<std::byte*>(data);
  post({begin, bytes}, source, piece_of(bytes, source, true), Wire::kPosted);
}

void Batch::pass_on(void* data, std::int64_t bytes, int source, int destination) {
  auto* const begin = static_cast<std::byte*>(data);
  const std::int64_t longest =
      std::min(wire_.longest(source, traffic_), wire_.longest(destination, traffic_));
  for (std::int64_t passed = 0; passed < bytes; passed += longest) {
    const Wire::Passed piece = wire_.post_passed(begin + passed, std::min(longest, bytes - passed),
                                                 source, destination, traffic_);
    wire_.note_sent(destination, traffic_);
    posted_.insert(posted_.end(), {piece.receive, piece.send});
    peers_.insert(peers_.end(), {source, destination});
    pieces_.insert(pieces_.end(), {{true}, {false}});
  }
}

Batch::Piece Batch::piece_of(std::int64_t bytes, int peer, bool receives) {
  if (bytes <= wire_.longest(peer, traffic_) * Wire::kPosted) return {receives};
  rests_.emplace_back();
  return {receives, static_cast<std::int32_t>(rests_.size()) - 1};
}

void Batch::post(Rest rest, int peer, Piece piece, std::int64_t pieces) {
  const std::int64_t longest = wire_.longest(peer, traffic_);
  for (std::int64_t i = 0; i < pieces && rest.bytes > 0; ++i) {
    const std::int64_t length = std::min(longest, rest.bytes);
    if (piece.receives) {
      posted_.push_back(wire_.post_receive(rest.data, length, peer, traffic_));
    } else {
      posted_.push_back(wire_.post_send(rest.data, length, peer, traffic_));
      wire_.note_sent(peer, traffic_);
    }
    peers_.push_back(peer);
    pieces_.push_back(piece);
    rest.data += length;
    rest.bytes -= length;
  }
  if (piece.message >= 0) rests_[static_cast<std::size_t>(piece.message)] = rest;
}

void Batch::withdraw(int source) {
  for (std::size_t i = 0; i < posted_.size(); ++i) {
    if (peers_[i] != source || !pieces_[i].receives) continue;
    wire_.withdraw(posted_[i]);
    posted_[i] = Wire::kEnded;
    pieces_[i] = {};
  }
  go_on();
}

Batch::Moved Batch::move() {
  if (!wire_.progress(posted_, peers_)) return Moved::nothing;
  const bool ended = std::find(posted_.begin(), posted_.end(), Wire::kEnded) != posted_.end();
  go_on();
  return ended ? Moved::pieces : Moved::parts;
}

void Batch::wait(std::chrono::milliseconds timeout) {
  try {
    wait_for_all(timeout);
  } catch (const OneSidedMismatch&) {
    // Found in a collective under way: what comes now may be of another one.
    if (Wire::side_of(traffic_) == Wire::Side::collective || !has_ended()) throw;
  } catch (const MismatchError&) {
    // The news may have overtaken the last messages of a call in which all have agreed.
    if (!has_ended()) throw;
  }
}

void Batch::wait_until(const Received& received) {
  received_ = &received;
  const Finally end([this] {
    received_ = nullptr;
    is_enough_ = false;
  });
  wait();
}

bool Batch::has_ended() {
  try {
    progress();
  } catch (const MismatchError&) {
    // The same again, by messages that have moved.
  }
  go_on();
  return is_over();
}

void Batch::wait_for_all(std::chrono::milliseconds timeout) {
  std::optional<Wire::Clock::time_point> moved;  // a piece, last, or when the wait began
  std::unique_ptr<Wire::Lookout> lookout;
  while (!is_over()) {
    if (const Moved how = move(); how != Moved::nothing) {
      // Parts of long pieces trickle in while a slow wire carries them: no reason to spin.
      if (how == Moved::pieces || wire_.is_flowing()) moved.reset();
      if (lookout) lookout->restart();
      continue;
    }
    const auto now = wire_.now();
    if (!moved) moved = now;
    if (!wire_.pause(now - *moved, side())) continue;
    InterruptCheck::poll();
    if (!lookout) lookout = wire_.look_out(side(), timeout);
    lookout->look(awaited());
  }
}

void Batch::go_on() {
  struct Following {
    int peer;
    Piece piece;
  };
  RecycledVector<Following> following;
  RecycledVector<int> sources;  // that are to be told of
  std::size_t left = 0;
  for (std::size_t i = 0; i < posted_.size(); ++i) {
    if (posted_[i] == Wire::kEnded) {
      if (pieces_[i].receives) {
        last_source_ = peers_[i];
        wire_.note_received(peers_[i], traffic_);
        if (received_ != nullptr) sources.push_back(peers_[i]);
      }
      if (pieces_[i].message >= 0) following.push_back({peers_[i], pieces_[i]});
      continue;
    }
    posted_[left] = posted_[i];
    peers_[left] = peers_[i];
    pieces_[left++] = pieces_[i];
  }
  posted_.resize(left);
  peers_.resize(left);
  pieces_.resize(left);
  for (const Following& next : following) {
    post(rests_[static_cast<std::size_t>(next.piece.message)], next.peer, next.piece, 1);
  }
  for (const int source : sources) is_enough_ = (*received_)(source) || is_enough_;
}

/** A reply is what a sender receives, and a receiver sends. */
Wire::Side Batch::side() const {
  if (Wire::side_of(traffic_) == Wire::Side::collective) return Wire::Side::collective;
  const bool of_receiver = pieces_.front().receives == (traffic_ != Wire::Traffic::reply);
  return of_receiver ? Wire::Side::recv : Wire::Side::send;
}

RecycledVector<int> Batch::awaited() const {
  RecycledVector<int> ranks(peers_.begin(), peers_.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace tutti
