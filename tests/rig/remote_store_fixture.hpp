// A store of this process, and ranks of other hosts that use it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/hosts/store/remote_store.hpp"
#include "comm/hosts/store/store_server.hpp"
#include "comm/key_values.hpp"
#include "comm/shm/memory/segment.hpp"
#include "comm/shm/store/host_store.hpp"
#include "rig/processes.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::test::remote_store_test {

using namespace std::chrono_literals;
using Take = KeyValues::Take;

inline constexpr std::chrono::milliseconds kNever = 100s;  // a deadline that no test waits for
inline constexpr std::chrono::milliseconds kPatience = 30s;

inline std::vector<std::byte> filled(std::size_t size, int with) {
  return std::vector<std::byte>(size, static_cast<std::byte>(with));
}

inline std::vector<std::byte> get(
    KeyValues& store, std::string_view key, std::chrono::milliseconds timeout = kPatience,
    const std::function<void()>& look = [] {}) {
  return store.get(key, Take::copy, timeout, look);
}

class RemoteStoreTest : public ::testing::Test {
 protected:
  static constexpr int kMostRanks = 4;
  using Body = std::function<void(KeyValues& store)>;

  RemoteStoreTest()
      : name_(shm::segment_name(UniqueId::create(), "store")),
        guard_(name_),
        table_(shm::HostStore::create(name_, 0, kMostRanks, kNever)) {}

  void serve(std::vector<StoreServer::Neighbour> neighbours = {}) {
    server_.emplace(*table_, std::move(neighbours));
  }
  /** A rank of another host; its outcome is what `body` throws. */
  void start(int rank, const Body& body) {
    processes_.start([&, rank] {
      const std::string outcome = outcome_of([&] {
        RemoteStore store(server_->endpoint(), rank, kNever);
        body(store);
      });
      (*reports_)[static_cast<std::size_t>(rank)].end_with(outcome);
    });
  }
  std::string outcome_of_rank(int rank) {
    Report& report = (*reports_)[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(holds_within(kPatience, [&] { return report.ended.load(); }))
        << "rank " << rank << " does not end";
    return report.outcome.data();
  }

  std::string name_;
  shm::NameGuard guard_;
  std::unique_ptr<shm::HostStore> table_;
  std::optional<StoreServer> server_;
  Shared<std::array<Report, kMostRanks>> reports_;
  Processes processes_;
};

}  // namespace tutti::test::remote_store_test
