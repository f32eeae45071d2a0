// Floats that are no numbers to count with.
#pragma once

#include <limits>

namespace tutti {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace tutti
