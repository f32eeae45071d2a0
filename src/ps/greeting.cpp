// Makes text of a greeting, and the reverse.
#include "ps/greeting.hpp"

#include "comm/shm/segment.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr std::string_view kNew = "new ";
constexpr std::string_view kLoaded = "loaded ";
constexpr std::string_view kFailed = "failed ";

}  // namespace

std::string Greeting::table_segment(std::size_t table) const {
  return shm::segment_name(memory, "table " + std::to_string(table));
}

std::string Greeting::dense_segment() const { return shm::segment_name(memory, "dense"); }

std::string Greeting::encode() const {
  if (failure) return std::string(kFailed) + failure->encode();
  return std::string(loaded ? kLoaded : kNew) + memory.to_string();
}

Greeting Greeting::decode(std::string_view text) {
  Greeting greeting;
  if (text.starts_with(kFailed)) {
    greeting.failure = Failure::decode(text.substr(kFailed.size()));
    return greeting;
  }
  greeting.loaded = text.starts_with(kLoaded);
  if (!greeting.loaded && !text.starts_with(kNew)) {
    throw CommunicationError("a server's greeting is none");
  }
  greeting.memory = UniqueId::parse(text.substr(greeting.loaded ? kLoaded.size() : kNew.size()));
  return greeting;
}

}  // namespace tutti::ps
