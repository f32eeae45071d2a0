// What the ranks of the rigs do over and over until one of them is killed or stopped.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/communicator.hpp"

namespace tutti::test {

struct Work {
  std::string_view name;
  /** Gets ready (collective), and returns what is to be repeated (collective, too). */
  std::function<std::function<void()>(Communicator&)> prepare;
};

/** Every collective, send and recv; small, staged in pieces, and zero-copy. */
std::span<const Work> all_work();

/** What became of a rank: "lost 2: <message>", or else what it threw. */
std::string work_until_lost(Communicator& communicator, const Work& work,
                            const std::function<void()>& before_each_call);

}  // namespace tutti::test
