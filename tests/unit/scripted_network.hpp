// A network that carries control messages no further than to the test.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/failures/control_message.hpp"
#include "comm/failures/control_network.hpp"
#include "comm/failures/wait_graph.hpp"
#include "comm/own_waits.hpp"
#include "unit/hand.hpp"

namespace tutti::test {

/** As rank 0 of `size` sees it. */
class ScriptedNetwork final : public ControlNetwork {
 public:
  struct Letter {
    ControlMessage message;
    int peer;
  };

  explicit ScriptedNetwork(int size) : members(static_cast<std::size_t>(size)) {
    std::iota(members.begin(), members.end(), 0);
  }

  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(members.size()); }
  std::unique_ptr<Messenger> messenger(int /*tag*/) override {
    return std::make_unique<Mailbox>(*this);
  }
  WaitGraph& wait_graph() override { return graph_; }
  void fail() noexcept override { has_failed_ = true; }
  void keep() noexcept override { has_failed_ = true; }
  bool has_failed() const noexcept override { return has_failed_; }
  void note_ended(int /*rank*/) override {}
  bool may_call() const noexcept override { return true; }
  bool this_thread_may_call() const noexcept override { return this_thread_may; }

  std::vector<int> members;
  std::vector<Letter> sent;
  std::vector<Letter> come;  ///< until it is received
  bool this_thread_may = true;

 private:
  class Mailbox final : public Messenger {
   public:
    explicit Mailbox(ScriptedNetwork& network) : network_(network) {}
    void send(const ControlMessage& message, int destination) override {
      network_.sent.push_back({message, destination});
    }
    void flush() noexcept override {}
    bool is_sending(const std::function<bool(int)>& /*is_meant*/) const override { return false; }
    void receive(const std::function<void(const ControlMessage&, int)>& handle) override {
      for (const Letter& one : std::exchange(network_.come, {})) handle(one.message, one.peer);
    }

   private:
    ScriptedNetwork& network_;
  };

  bool has_failed_ = false;
  Hand time_;
  OwnWaits waits_{time_, kFirstProcessNumber};
  WaitGraph graph_{time_, waits_};
};

}  // namespace tutti::test
