// What a wrapper on another machine leaves when it is killed is ended there.
#pragma once

#include <sys/types.h>

#include <optional>

namespace tutti::launch {

/**
 * Goes on in a child of this process, and returns there which process is its parent. That one
 * passes signals on to the child; when the child has ended, by SIGKILL for example, it ends all
 * that descends from it, and returns nothing: it has no more to do. It ends at once when its own
 * parent does before. Throws SystemError.
 */
std::optional<pid_t> go_on_guarded();

}  // namespace tutti::launch
