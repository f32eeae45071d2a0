// Who is looked after while somebody waits for a stream.
#include "device/cuda/watches.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace tutti::cuda {

std::shared_ptr<Watches> Watches::of(int ordinal, void* stream) {
  // They outlive whoever borrows the stream: its work goes on.
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<std::pair<int, void*>, std::shared_ptr<Watches>>;
  const std::lock_guard lock(*mutex);
  std::shared_ptr<Watches>& found = (*all)[{ordinal, stream}];
  if (!found) {
    found = std::make_shared<Watches>();
    std::erase_if(*all, [&](const auto& entry) {
      return entry.second != found && entry.second.use_count() == 1 && entry.second->are_over();
    });
  }
  return found;
}

bool Watches::are_over() const {
  const auto list = this->list();
  return !list || std::all_of(list->begin(), list->end(),
                              [](const auto& watch) { return watch->is_over(); });
}

void Watches::add(const std::shared_ptr<Stream::Watch>& watch) {
  const std::lock_guard lock(mutex_);
  if (list_ && std::find(list_->begin(), list_->end(), watch) != list_->end()) return;
  auto more = std::make_shared<List>();
  if (list_) {
    std::copy_if(list_->begin(), list_->end(), std::back_inserter(*more),
                 [](const auto& other) { return !other->is_over(); });
  }
  more->push_back(watch);
  list_ = std::move(more);
}

void Watches::drop(const Stream::Watch* watch) {
  const std::lock_guard lock(mutex_);
  if (!list_) return;
  auto others = std::make_shared<List>();
  std::copy_if(list_->begin(), list_->end(), std::back_inserter(*others),
               [&](const auto& other) { return other.get() != watch; });
  list_ = others->empty() ? nullptr : std::move(others);
}

std::shared_ptr<const Watches::List> Watches::list() const {
  const std::lock_guard lock(mutex_);
  return list_;
}

}  // namespace tutti::cuda
