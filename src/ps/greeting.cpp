// Makes text of a greeting, and the reverse.
#include "ps/greeting.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "comm/shm/memory/segment.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr std::string_view kNew = "new ";
const std::string kLoaded = "loaded ";
constexpr std::string_view kFailed = "failed ";

}  // namespace

std::string Greeting::table_segment(std::size_t table) const {
  return shm::segment_name(memory, "table " + std::to_string(table));
}

std::string Greeting::dense_segment() const { return shm::segment_name(memory, "dense"); }

std::string Greeting::encode() const {
  if (failure) return std::string(kFailed) + failure->encode();
  const std::string begun = loaded ? kLoaded + std::to_string(*loaded) + " " : std::string(kNew);
  return begun + memory.to_string();
}

Greeting Greeting::decode(std::string_view text) {
  Greeting greeting;
  if (text.starts_with(kFailed)) {
    greeting.failure = Failure::decode(text.substr(kFailed.size()));
    return greeting;
  }
  const bool is_loaded = text.starts_with(kLoaded);
  if (!is_loaded && !text.starts_with(kNew)) {
    throw CommunicationError("a server's greeting is none");
  }
  text.remove_prefix(is_loaded ? kLoaded.size() : kNew.size());
  if (is_loaded) {
    const std::size_t end = std::min(text.find(' '), text.size());
    greeting.loaded = parse_number<std::int64_t>(text.substr(0, end));
    if (!greeting.loaded) throw CommunicationError("a server's greeting has no round");
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  greeting.memory = UniqueId::parse(text);
  return greeting;
}

}  // namespace tutti::ps
