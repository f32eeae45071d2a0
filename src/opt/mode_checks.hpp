// What the modes of DistOpt refuse: `method` is who was called.
#pragma once

#include <cmath>
#include <string>

#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti {

/** Throws InvalidArgument unless `spars` is a fraction that top-K can send, or a threshold. */
inline void check_spars(const char* method, double spars, bool top_k) {
  const bool good = top_k ? spars > 0.0 && spars <= 1.0 : spars >= 0.0 && std::isfinite(spars);
  if (good) return;
  throw InvalidArgument(
      std::string(method) + ": spars is " + number_text(spars) + ", but must be " +
      (top_k ? "above 0 and at most 1 for top-K" : "finite and not negative for a threshold"));
}

/** Throws InvalidArgument for a limit of values that nothing can be clipped to. */
inline void check_clip(const char* method, bool clipping, float clip_value) {
  if (!clipping || (clip_value > 0.0F && std::isfinite(clip_value))) return;
  throw InvalidArgument(std::string(method) + ": clip_value is " + number_text(clip_value) +
                        ", but must be finite and positive");
}

/** Throws InvalidArgument where momentum is to be corrected, but what is not sent is not kept. */
inline void check_correction(const char* method, bool corr, float momentum) {
  if (corr || momentum == 0.0F) return;
  throw InvalidArgument(std::string(method) +
                        ": corr is false, but the momentum correction of SparseOptions needs it");
}

}  // namespace tutti
