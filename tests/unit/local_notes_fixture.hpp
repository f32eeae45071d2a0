// Ranks of a host, which are threads, for the tests of their notes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/local_notes.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {

class LocalNotesTest : public ::testing::Test {
 protected:
  using Bytes = std::vector<std::byte>;

  static constexpr int kRanks = 3;
  static constexpr std::array<int, kRanks> kNames{10, 11, 12};

  /** One rank of the host. */
  class LocalRank {
   public:
    LocalRank(const UniqueId& id, int rank, std::chrono::milliseconds timeout)
        : local(id, rank, {kNames.begin(), kNames.end()}, timeout) {
      local.group().set_idle([this](std::span<const int> /*names*/) { notes.look(); });
    }

    /** Begins the next broadcast, of `bytes` bytes from `root`. */
    void begin(int root, std::int64_t bytes) {
      const std::uint64_t before = last.sequence == 0 ? 0 : last.hash();
      const std::uint64_t sequence = last.sequence + 1;
      last = Signature{.sequence = sequence,
                       .operation = Operation::broadcast,
                       .root = root,
                       .count = bytes,
                       .before = before};
      signatures.begin(last);
    }
    /** A broadcast of `data`. */
    void broadcast(int root, Bytes& data) {
      begin(root, std::ssize(data));
      if (local.rank() == root) {
        std::ranges::copy(data, notes.make_room(std::ssize(data)).begin());
        notes.leave({});
      } else {
        notes.read(root, data, kNames[static_cast<std::size_t>(root)]);
      }
    }
    /** Runs `action`, which must find that the ranks make different calls, or hear of it: the text.
     */
    std::string mismatch_in(const std::function<void()>& action) {
      try {
        action();
        ADD_FAILURE() << "rank " << local.rank() << " noticed nothing";
      } catch (const MismatchError& error) {
        local.group().fail_mismatch(error.what());  // as a transport does
        return error.what();
      }
      return "";
    }

    Local local;
    Signatures signatures{local};
    LocalNotes notes{local.group(), signatures};
    Signature last;
  };

  /** Waits for another rank; throws if it does not come. */
  static void until(const std::function<bool()>& is_so) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!is_so()) {
      if (std::chrono::steady_clock::now() > end) throw Error("another rank has not come");
      std::this_thread::yield();
    }
  }

  static void on_ranks(const std::function<void(LocalRank&)>& body,
                       std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    const UniqueId id = UniqueId::create();
    test::on_threads(kRanks, [&](int number) {
      LocalRank rank(id, number, timeout);
      body(rank);
    });
  }

  static void expect_shown(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
    // What is compared are calls of one number.
    EXPECT_EQ(text.find("number"), std::string::npos) << text;
  }
  /** Whoever collects what the others have left waits for one in vain, which is named. */
  static void expect_missing(LocalRank& rank, int name) {
    std::array<const void*, kRanks> parts{};
    try {
      rank.notes.collect(parts);
      ADD_FAILURE() << "rank " << name << " was waited for";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{name}) << error.what();
    }
  }
};

}  // namespace tutti::shm
