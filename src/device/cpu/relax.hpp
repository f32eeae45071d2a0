// What a processor is told while a thread waits without sleeping.
#pragma once

namespace tutti::cpu {

/** A pause of some tens of cycles, in which the core's other thread has more of it. */
void relax();

}  // namespace tutti::cpu
