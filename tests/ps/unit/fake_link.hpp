// A server that a test plays itself: a link whose requests are kept, and answered as the test says.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ps/modes/servers.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test {

struct FakeServer {
  struct Got {
    RequestHeader header;
    std::vector<std::byte> payload;
  };
  std::vector<Got> requests;
  std::function<void(const RequestHeader&)> before_send = [](const RequestHeader&) {};
  std::function<Reply(const Got&)> answer = [](const Got&) { return Reply{}; };
  int drafts_left = 1'000'000;  ///< then this throws:
  std::function<void()> refuse_draft = [] { throw SystemError("the test has no memory", ENOMEM); };
  bool is_behind = false;  ///< nothing is answered before somebody waits for it
  bool is_on_this_host = false;
  int waits = 0;          ///< for replies
  RequestKind awaited{};  ///< by the last of them
  std::function<void()> before_wait = [] {};
  std::function<bool(std::int64_t)> has_room = [](std::int64_t) { return true; };

  int count(RequestKind kind) const {
    int count = 0;
    for (const Got& got : requests) count += got.header.kind == kind ? 1 : 0;
    return count;
  }
};

/** Everything is answered at once, unless the server is behind. */
class FakeLink final : public Link {
 public:
  explicit FakeLink(FakeServer& server) : server_(server) {}

  Draft draft(std::int64_t bytes) override {
    if (bytes == 0) return {};
    if (server_.drafts_left-- <= 0) server_.refuse_draft();
    drafts_[++last_].resize(static_cast<std::size_t>(bytes));
    return {drafts_[last_], last_};
  }
  void discard(const Draft& draft) override { drafts_.erase(draft.handle); }
  std::uint64_t send(const RequestHeader& header, const Draft& draft) override {
    server_.before_send(header);
    server_.requests.push_back({header, drafts_[draft.handle]});
    drafts_.erase(draft.handle);
    replies_.push_back(server_.answer(server_.requests.back()));
    return replies_.size();
  }
  bool has_room(std::int64_t requests) override { return server_.has_room(requests); }
  std::uint64_t answered() override { return server_.is_behind ? 0 : replies_.size(); }
  Reply wait(std::uint64_t number) override {
    ++server_.waits;
    server_.awaited = server_.requests[number - 1].header.kind;
    server_.before_wait();
    return replies_[number - 1];
  }
  void forget(std::uint64_t) override {}
  Reply refusal() override { return {}; }
  void check() override {}
  void ask_presence() override {}
  void await_presence(std::chrono::milliseconds) override {}
  void set_reason(std::string_view) override {}
  bool on_this_host() const override { return server_.is_on_this_host; }

  bool has_drafts() const { return !drafts_.empty(); }

 private:
  FakeServer& server_;
  std::map<std::int64_t, std::vector<std::byte>> drafts_;
  std::int64_t last_ = 0;
  std::vector<Reply> replies_;
};

inline ServerEnd end_of(FakeServer& server, int index) {
  return {{100 + index, "server " + std::to_string(index)},
          std::make_unique<FakeLink>(server),
          {},
          {},
          {}};
}

/** As an InterruptCheck may throw it. */
struct Interrupted : std::exception {};

inline Reply no_memory() { return {{Outcome::no_memory}, {}}; }

}  // namespace tutti::ps::test
