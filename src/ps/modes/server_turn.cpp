// Looks for requests closely, and not for long.
#include "ps/modes/server_turn.hpp"

#include "base/waiter.hpp"
#include "device/cpu/relax.hpp"

namespace tutti::ps {
namespace {

using Clock = std::chrono::steady_clock;

/** Then the worker sleeps, and the server's thread is woken by what comes. */
constexpr std::chrono::microseconds kPatience{300};
constexpr std::chrono::microseconds kWithoutOffers{10};  // of that, without offering the core
constexpr int kLooksAtOnce = 20;

}  // namespace

ServerTurn::ServerTurn(ServerPlace* place) {
  if (place == nullptr) return;
  lock_ = std::unique_lock(place->mutex, std::try_to_lock);
  if (!lock_ || place->server == nullptr) return;
  server_ = place->server;
  server_->stay_awake();
}

ServerTurn::~ServerTurn() {
  if (server_ != nullptr) server_->rest();
}

void ServerTurn::serve_until(const std::function<bool()>& done) {
  if (server_ == nullptr) return;
  for (auto since = Clock::now(); !done();) {
    bool served = false;
    for (int i = 0; i < kLooksAtOnce && !served; ++i) {
      served = server_->serve_next();
      if (!served) cpu::relax();
    }
    const auto now = Clock::now();
    if (served) since = now;
    if (now - since > kPatience) return;
    if (now - since > kWithoutOffers) offer_core();
  }
}

}  // namespace tutti::ps
