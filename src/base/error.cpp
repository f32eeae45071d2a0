// Messages of the exceptions that carry more than a text.
#include "tutti/error.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace tutti {
namespace {

std::vector<int> sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string lost_message(const std::vector<int>& ranks, const std::string& reason) {
  std::string text = "lost ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "rank " : ", rank ") + std::to_string(ranks[i]);
  }
  return text + ": " + reason;
}

}  // namespace

SystemError::SystemError(const std::string& what, int error_number)
    : Error(what + ": " + std::generic_category().message(error_number)),
      error_number_(error_number) {}

PeerLost::PeerLost(std::vector<int> ranks, const std::string& reason)
    : CommunicationError(lost_message(sorted(ranks), reason)),
      ranks_(sorted(std::move(ranks))),
      reason_(reason) {}

}  // namespace tutti
