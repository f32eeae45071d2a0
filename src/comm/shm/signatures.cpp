// Writes down what a rank asks for, and looks for one that has asked for something else.
#include "comm/shm/signatures.hpp"

#include <algorithm>
#include <atomic>

namespace tutti::shm {
namespace {

/** So many calls back two ranks are compared. Nobody is further ahead of another one than there is
 * room for notes, so these requests stay as they are meanwhile. */
constexpr std::uint64_t kCompared = Notebook::kCalls - Notebook::kNotes - 2;

}  // namespace

void Signatures::begin(const Signature& signature) {
  Notebook& own = notebook(local_.rank());
  Notebook::Request& request = own.request(signature.sequence);
  hash_ = signature.hash();
  request.signature = signature;
  history_ = mix_hash(history_, hash_);
  request.history.store(history_, std::memory_order_release);
  own.calls.store(signature.sequence, std::memory_order_release);
}

std::optional<std::uint64_t> Signatures::first_difference(int peer) const {
  Notebook& own = notebook(local_.rank());
  Notebook& other = notebook(peer);
  const auto calls_of = [](const Notebook& one) {
    return one.calls.load(std::memory_order_acquire);
  };
  const auto is_same = [&](std::uint64_t call) {
    return own.request(call).history.load(std::memory_order_acquire) ==
           other.request(call).history.load(std::memory_order_acquire);
  };
  const std::uint64_t newest = calls_of(own);
  const std::uint64_t last = std::min(newest, calls_of(other));
  std::uint64_t call = newest > kCompared ? newest - kCompared : 1;
  if (last < call || is_same(last)) return {};
  while (call < last && is_same(call)) ++call;
  // If this is another thread than the one that makes calls, they may have gone on meanwhile.
  if (std::max(calls_of(own), calls_of(other)) >= call + Notebook::kCalls - 1) return {};
  return call;
}

RankSignature Signatures::last_of(int peer) const {
  Notebook& one = notebook(peer);
  const std::uint64_t call = one.calls.load(std::memory_order_acquire);
  return {local_.group().name_of(peer), one.request(call).signature};
}

std::vector<RankSignature> Signatures::differing() const {
  std::optional<std::uint64_t> first;
  for (int peer = 0; peer < local_.size(); ++peer) {
    const std::optional<std::uint64_t> call = first_difference(peer);
    if (call && (!first || *call < *first)) first = call;
  }
  std::vector<RankSignature> requests;
  for (int peer = 0; first && peer < local_.size(); ++peer) {
    Notebook& one = notebook(peer);
    if (one.calls.load(std::memory_order_acquire) < *first) continue;
    requests.push_back({local_.group().name_of(peer), one.request(*first).signature});
  }
  return requests;
}

}  // namespace tutti::shm
