// Draws trials.
#include "ps/faults/trial.hpp"

#include <random>

namespace tutti::ps::faults {
namespace {

const char* name_of(const Mode& mode) {
  if (const auto* sync = std::get_if<Sync>(&mode)) {
    return sync->continue_after_loss ? "sync that goes on" : "sync";
  }
  if (std::holds_alternative<HalfAsync>(mode)) return "half-async";
  return std::holds_alternative<Geo>(mode) ? "GEO" : "async";
}

}  // namespace

Trial::Trial(std::uint64_t seed, int which) : number(which) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(which));
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
  };
  layout = static_cast<Layout>(below(4));
  workers = 2 + below(2);
  servers = layout == Layout::threads ? workers : 1 + below(2);
  switch (below(5)) {
    case 0:
      mode = Sync{};
      break;
    case 1:
      mode = Sync{.continue_after_loss = true};
      break;
    case 2:
      mode = HalfAsync{.merge_batches = 1 + below(3)};
      break;
    case 3:
      mode = Geo{.push_steps = 1 + below(4)};
      break;
    default:
      mode = Async{.send_queue_size = 1 + below(20)};
  }
  consistent_rows = below(3) == 0;
  saves = below(3) == 0;
  // A cut between processes of one host would be none: they go on through shared memory.
  fault = static_cast<Fault>(below(layout == Layout::hosts ? 3 : 2));
  victim = below(processes());
  delay = std::chrono::microseconds(below(60'000));
}

bool Trial::others_go_on() const {
  if (!is_worker(victim) || layout == Layout::threads) return false;
  const auto* sync = std::get_if<Sync>(&mode);
  return sync == nullptr || sync->continue_after_loss;
}

std::string Trial::text() const {
  static constexpr std::array kLayouts{"ranks", "threads", "endpoints", "hosts"};
  static constexpr std::array kFaults{"killed", "stopped", "cut off"};
  const std::string who = is_worker(victim) ? "worker " + std::to_string(victim)
                                            : "server " + std::to_string(victim - workers);
  return "trial " + std::to_string(number) + ": " + name_of(mode) + ", " + std::to_string(workers) +
         " workers, " + std::to_string(servers) + " servers as " +
         kLayouts.at(static_cast<std::size_t>(layout)) + (saves ? ", saving" : "") + ": " + who +
         " is " + kFaults.at(static_cast<std::size_t>(fault)) + " after " +
         std::to_string(delay.count()) + " us";
}

}  // namespace tutti::ps::faults
