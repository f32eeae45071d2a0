// Judges a hundred calls at a time.
#include "comm/record/lateness.hpp"

namespace tutti::record {

std::optional<Lateness::Finding> Lateness::judge(std::uint64_t now) {
  const auto time = static_cast<double>(now - window_);
  const bool costly = window_ != 0 && static_cast<double>(in_window_) > kCostly * time;
  std::optional<Finding> finding;
  if (costly) {
    for (std::size_t rank = 0; rank < waited_.size(); ++rank) {
      const double share = static_cast<double>(waited_[rank] - before_[rank]) / time;
      if (share > (finding ? finding->share : kCostly)) {
        finding = Finding{static_cast<int>(rank), share};
      }
    }
  }
  before_ = waited_;
  in_window_ = 0;
  window_ = now;
  return finding;
}

}  // namespace tutti::record
