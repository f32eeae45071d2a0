// The system's time.
#include "base/time_source.hpp"

#include <thread>

namespace tutti {
namespace {

class SystemTime final : public TimeSource {
 public:
  Clock::time_point now() const override { return Clock::now(); }
  void sleep(Clock::duration time) const override { std::this_thread::sleep_for(time); }
};

}  // namespace

const TimeSource& TimeSource::system() {
  static const auto* const time = new SystemTime;  // waits of static objects may end later
  return *time;
}

}  // namespace tutti
