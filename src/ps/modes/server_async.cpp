// A server in async mode and half-async mode: applies pushes as they come.
#include <cstdint>

#include "ps/modes/server_mode.hpp"

namespace tutti::ps {
namespace {

class AsyncServer final : public ServerMode {
 public:
  AsyncServer(float scale, Stores& stores, const Members& members, Links& links)
      : ServerMode(stores, members, links), scale_(scale) {}

  void push(const Request& request) override {
    stores_.apply(request, scale_);
    answer(request, {});
  }

  std::optional<Answer> end_round(const Request& request, bool) override {
    const RequestHeader& header = request.header;
    const bool waits = (header.flags & kWaitForSlowest) != 0;
    if (waits && header.round - members_.slowest() >= header.count) return std::nullopt;
    return Answer{};
  }

  void remove(int, const std::string*) override {}

 private:
  float scale_;
};

}  // namespace

std::unique_ptr<ServerMode> make_server_mode(const Async& mode, Stores& stores,
                                             const Members& members, Links& links) {
  const float scale = mode.divide_by_workers ? 1.0F / static_cast<float>(members.at_start()) : 1.0F;
  return std::make_unique<AsyncServer>(scale, stores, members, links);
}

std::unique_ptr<ServerMode> make_server_mode(const HalfAsync&, Stores& stores,
                                             const Members& members, Links& links) {
  return std::make_unique<AsyncServer>(1.0F, stores, members, links);
}

}  // namespace tutti::ps
