// Counts in /proc and looks through /dev/shm.
#include "support/leftovers.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace tutti::test {
namespace {

std::size_t entries_of(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

/** Mappings of tutti's files, which have lost their names by now. */
std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/tutti-") != std::string::npos) ++count;
  }
  return count;
}

/** What `describe` returns, once that is nothing or some seconds have passed: threads that are
 * ending, and other programs, take their time. */
template <class Describe>
std::string when_settled(const Describe& describe) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(15);
  for (;;) {
    std::string text = describe();
    if (text.empty() || std::chrono::steady_clock::now() > deadline) return text;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

std::set<std::string> shared_files() {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("tutti-")) files.insert(name);
  }
  return files;
}

Leftovers::Leftovers()
    : descriptors_(entries_of("/proc/self/fd")),
      threads_(entries_of("/proc/self/task")),
      mappings_(shared_mappings()),
      files_(shared_files()) {}

std::string Leftovers::in_process() const {
  return when_settled([this] {
    const Leftovers now;
    std::ostringstream text;
    const auto compare = [&](const char* what, std::size_t before, std::size_t after) {
      if (after > before) text << after - before << " more " << what << "; ";
    };
    compare("descriptors", descriptors_, now.descriptors_);
    compare("threads", threads_, now.threads_);
    compare("mappings", mappings_, now.mappings_);
    return text.str();
  });
}

std::string Leftovers::in_dev_shm() const {
  std::set<std::string> suspects = shared_files();
  return when_settled([&] {
    const std::set<std::string> now = shared_files();
    std::erase_if(suspects, [&](const std::string& file) {
      return files_.contains(file) || !now.contains(file);
    });
    std::string text;
    for (const std::string& file : suspects) text += file + " ";
    return text;
  });
}

}  // namespace tutti::test
