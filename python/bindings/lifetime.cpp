// The list of what is to be closed.
#include "lifetime.hpp"

#include <algorithm>
#include <exception>
#include <vector>

namespace tutti::python {
namespace {

struct Entry {
  std::weak_ptr<Closable> object;
  pid_t process;  // a forked child inherits the object, but not the threads that it waits for
};

/** Guarded by the GIL. Never destroyed: objects may still come and go while the process ends. */
std::vector<Entry>& living() {
  static auto& list = *new std::vector<Entry>;
  return list;
}

}  // namespace

void close_at_exit(const std::shared_ptr<Closable>& object) {
  std::erase_if(living(), [](const auto& entry) { return entry.object.expired(); });
  living().push_back({object, ::getpid()});
}

void close_all() {
  const auto list = std::exchange(living(), {});
  for (auto entry = list.rbegin(); entry != list.rend(); ++entry) {
    if (entry->process != ::getpid()) continue;
    const auto object = entry->object.lock();
    try {
      if (object) object->close();
    } catch (const std::exception&) {  // the process ends all the same, and with it the object
    }
  }
}

}  // namespace tutti::python
