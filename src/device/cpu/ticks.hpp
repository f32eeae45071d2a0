// The processor's own clock, for what is timed in every call.
#pragma once

#include <cstdint>

namespace tutti::cpu {

/** Whether ticks() is a clock: it counts at one rate on all cores, awake or not, and the kernel
 * keeps the time by it. */
bool has_ticks();

/** The processor's counter: half the price of the kernel's clock. 0 where has_ticks() is false. */
std::uint64_t ticks();

}  // namespace tutti::cpu
