// What the system maps memory by.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace tutti {

/** The size of a page of this system, in bytes. */
inline std::int64_t page_size() { return ::sysconf(_SC_PAGESIZE); }

}  // namespace tutti
