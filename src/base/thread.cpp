// Which threads are the library's own.
#include "base/thread.hpp"

namespace tutti {
namespace {

bool& is_own() {
  thread_local bool is_own = false;
  return is_own;
}

}  // namespace

bool is_own_thread() { return is_own(); }

void note_own_thread() { is_own() = true; }

}  // namespace tutti
