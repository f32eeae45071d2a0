// Keeps log lines until Python can take them.
#include "log.hpp"

#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "tutti/log.hpp"

namespace tutti::python {
namespace {

namespace py = pybind11;

/** The levels of the module logging, by LogLevel. */
constexpr std::array<int, 4> kLevels{40, 30, 20, 10};

int level_of(LogLevel level) { return kLevels[static_cast<std::size_t>(level)]; }

struct Line {
  LogLevel level;
  std::string message;
};

struct Kept {
  std::atomic<int> wanted{level_of(LogLevel::warn)};  // the least level
  std::atomic<bool> any = false;
  std::mutex mutex;
  std::vector<Line> lines;
};

Kept& kept() {
  static Kept& never_destroyed = *new Kept;
  return never_destroyed;
}

py::object logger() { return py::module_::import("logging").attr("getLogger")(py::str("tutti")); }

}  // namespace

void keep_log() {
  set_log_sink({[](LogLevel level) { return level_of(level) >= kept().wanted; },
                [](LogLevel level, std::string_view message) {
                  Kept& to = kept();
                  const std::lock_guard lock(to.mutex);
                  to.lines.push_back({level, std::string(message)});
                  to.any = true;
                }});
}

void ask_logger() { kept().wanted = logger().attr("getEffectiveLevel")().cast<int>(); }

void pass_on_log() {
  Kept& from = kept();
  if (!from.any) return;
  std::vector<Line> lines;
  {
    const std::lock_guard lock(from.mutex);
    lines.swap(from.lines);
    from.any = false;
  }
  const py::object to = logger();
  for (const Line& line : lines) to.attr("log")(level_of(line.level), str_of(line.message));
}

void stop_keeping_log() {
  set_log_sink({});
  pass_on_log();
}

}  // namespace tutti::python
