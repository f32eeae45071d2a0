// A Wire of which a test says what comes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/wire.hpp"

namespace tutti::test {

/** Thrown by a wait on a ScriptedWire that lasts for a second of its time. */
struct TooLate final : std::exception {};

/** Has what a test puts there, and keeps what is sent. Time passes in pauses. */
class ScriptedWire final : public Wire {
 public:
  explicit ScriptedWire(int rank) : rank_(rank) {}

  struct Message {
    int source;
    Traffic traffic;
    std::vector<std::byte> bytes;
    const std::byte* memory = nullptr;  // of what is sent
    bool held = false;                  // likewise
  };
  std::deque<Message> come;
  std::vector<Message> sent;                     // `source` is to whom
  std::vector<std::byte*> wanted;                // memory of what is received
  std::function<void()> at_pause;                // after a millisecond each
  std::function<void()> at_look;                 // of a Lookout
  std::function<void()> at_progress;             // before anything moves
  bool delivers = true;                          // what is posted, ...
  std::size_t most_delivered = ~std::size_t{0};  // ... but for what is sent after so many
  int parts = 0;                                 // of it that move meanwhile, one before each pause
  bool flows = false;                            // they move fast
  std::vector<Clock::duration> stills;           // of all pauses
  int restarts = 0;                              // of Lookouts
  int abandoned = 0;                             // batches
  std::vector<std::shared_ptr<const void>> kept;  // by these
  bool holds = false;                             // what is posted
  bool fast = false;                              // is_fast()
  bool passes = false;                            // passes_on()
  std::int64_t most = kPiece;                     // of a message

  int rank() const override { return rank_; }
  int size() const override { return 3; }
  std::int64_t longest(int /*peer*/, Traffic /*traffic*/) const override { return most; }
  Posted post_send(const std::byte* data, std::int64_t bytes, int destination,
                   Traffic traffic) override {
    sent.push_back({destination, traffic, {data, data + bytes}, data, holds});
    return sent.size();
  }
  void hold(bool whether) override { holds = whether; }
  Posted post_receive(std::byte* data, std::int64_t /*bytes*/, int /*source*/,
                      Traffic /*traffic*/) override {
    wanted.push_back(data);
    return 1;
  }
  bool is_fast() const override { return fast; }
  bool passes_on(std::span<const int> /*ranks*/) const override { return passes; }
  Passed post_passed(std::byte* data, std::int64_t bytes, int source, int destination,
                     Traffic traffic) override {
    return {post_receive(data, bytes, source, traffic),
            post_send(data, bytes, destination, traffic)};
  }
  std::optional<int> take(std::byte* data, std::int64_t bytes, Traffic traffic, int source,
                          std::span<const int> except) override {
    const auto found = std::find_if(come.begin(), come.end(), [&](const Message& one) {
      if (one.traffic != traffic) return false;
      if (source != kAnybody) return one.source == source;
      return std::find(except.begin(), except.end(), one.source) == except.end();
    });
    if (found == come.end()) return std::nullopt;
    EXPECT_LE(std::ssize(found->bytes), bytes);
    std::copy(found->bytes.begin(), found->bytes.end(), data);
    const int from = found->source;
    come.erase(found);
    return from;
  }
  bool has_read(int source, Traffic traffic) override {
    return std::any_of(come.begin(), come.end(), [&](const Message& one) {
      return one.source == source && one.traffic == traffic;
    });
  }
  bool progress(std::span<Posted> posted, std::span<const int> /*peers*/) override {
    if (at_progress) at_progress();
    if (!delivers && parts > 0 && std::exchange(part_is_due_, false)) return true;
    const auto ends = [this](Posted one) { return delivers && one <= most_delivered; };
    const bool moved = std::any_of(posted.begin(), posted.end(), ends);
    std::replace_if(posted.begin(), posted.end(), ends, kEnded);
    return moved;
  }
  bool is_flowing() override { return flows; }
  bool pause(Clock::duration still, Side /*side*/) override {
    stills.push_back(still);
    part_is_due_ = --parts > 0;
    now_ += std::chrono::milliseconds(1);
    if (now_ > Clock::time_point(std::chrono::seconds(1))) throw TooLate();
    if (at_pause) at_pause();
    return true;
  }
  Clock::time_point now() const override { return now_; }
  std::unique_ptr<Lookout> look_out(Side /*side*/, std::chrono::milliseconds /*timeout*/) override {
    class Looks final : public Lookout {
     public:
      explicit Looks(ScriptedWire& wire) : wire_(wire) {}
      void look(std::span<const int> /*awaited*/) override {
        if (wire_.at_look) wire_.at_look();
      }
      void restart() override { ++wire_.restarts; }

     private:
      ScriptedWire& wire_;
    };
    return std::make_unique<Looks>(*this);
  }
  void withdraw(Posted /*receive*/) override {}
  void abandon(Traffic /*traffic*/, std::span<Posted> /*receives*/,
               std::span<const Posted> /*sends*/,
               std::span<const std::shared_ptr<const void>> memory) noexcept override {
    ++abandoned;
    kept.insert(kept.end(), memory.begin(), memory.end());
  }
  std::chrono::milliseconds timeout() const override { return std::chrono::seconds(1); }
  ScratchPool& scratch() override { return scratch_; }
  MessageCounts& counts() override { return counts_; }
  std::int64_t bytes_sent() const override { return 0; }

 private:
  // A ScratchPool::Leave. NOLINTNEXTLINE(performance-unnecessary-value-param)
  static void leave_nothing(std::shared_ptr<const void> /*memory*/) noexcept {}

  int rank_;
  bool part_is_due_ = false;
  Clock::time_point now_{};
  ScratchPool scratch_{&leave_nothing};
  MessageCounts counts_{3};
};

}  // namespace tutti::test
