// The list of what is to be closed.
#include "lifetime.hpp"

#include <algorithm>
#include <exception>
#include <vector>

namespace tutti::python {
namespace {

/** Guarded by the GIL. Never destroyed: objects may still come and go while the process ends. */
std::vector<std::weak_ptr<Closable>>& living() {
  static auto& list = *new std::vector<std::weak_ptr<Closable>>;
  return list;
}

}  // namespace

void close_at_exit(const std::shared_ptr<Closable>& object) {
  std::erase_if(living(), [](const auto& one) { return one.expired(); });
  living().push_back(object);
  py::module_::import("tutti._ends").attr("follow_process")();
}

void close_all(const std::optional<std::string>& reason) {
  const auto list = std::exchange(living(), {});
  for (auto entry = list.rbegin(); entry != list.rend(); ++entry) {
    const auto object = entry->lock();
    if (!object || object->is_inherited()) continue;
    try {
      object->close(reason);
    } catch (const std::exception&) {  // the process ends all the same, and with it the object
    }
  }
}

}  // namespace tutti::python
