// Who is looked after while somebody waits for a stream.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tutti/device.hpp"

namespace tutti::cuda {

/**
 * The watches of one cudaStream_t: what comes after a collective waits for it, and so for the other
 * ranks; the watch of an operation is that of all later ones of its stream. Safe from any thread.
 */
class Watches {
 public:
  using List = std::vector<std::shared_ptr<Stream::Watch>>;

  /** Those of a caller's stream, the same for all who borrow it, as long as there are any. */
  static std::shared_ptr<Watches> of(int ordinal, void* stream);

  void add(const std::shared_ptr<Stream::Watch>& watch);
  /** For who has been told what `watch` knows, and goes on with the stream. */
  void drop(const Stream::Watch* watch);
  /** The present ones, for an event to keep; null if there are none. */
  std::shared_ptr<const List> list() const;

 private:
  bool are_over() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const List> list_;  // replaced as a whole
};

}  // namespace tutti::cuda
