// Memory, streams and events of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "tutti/dtype.hpp"

namespace tutti {

/**
 * Owns a stretch of memory. Move-only; the memory goes back when the buffer is destroyed or
 * assigned to. A buffer keeps what it needs alive and may outlive the communicator it came from.
 */
class Buffer {
 public:
  Buffer() = default;
  /** Owns `bytes` bytes at `data`, which lives as long as `owner`. */
  Buffer(void* data, std::int64_t bytes, std::shared_ptr<void> owner, Device device = {})
      : data_(data), bytes_(bytes), device_(device), owner_(std::move(owner)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() = default;

  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  /** The buffer as elements of type T; a remainder smaller than one element is left out. */
  template <Element T>
  std::span<T> as() const {
    return {static_cast<T*>(data_), static_cast<std::size_t>(bytes_) / sizeof(T)};
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    owner_.swap(other.owner_);
  }

  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Device device_{};
  std::shared_ptr<void> owner_;
};

/** The completion of one operation on a stream. Copies speak of the same operation. */
class Event {
 public:
  /** An event of an operation that has ended well. */
  Event() = default;

  /** Whether the operation has ended, well or not. Does not block. */
  bool ready() const;
  /**
   * Blocks until the operation has ended, and throws what it threw. Every operation of tutti has
   * a deadline, so the wait ends.
   */
  void wait() const;

 private:
  friend class Stream;
  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/**
 * Runs operations one after the other, in the order in which they were submitted. Copies are
 * handles of the same stream.
 *
 * The default stream runs each operation on the calling thread before submit() returns, and lets
 * its exception through. A worker stream runs them on a thread of its own, so that they overlap
 * with what the caller does; an exception waits in the operation's Event.
 */
class Stream {
 public:
  /** The inline stream. */
  Stream() = default;
  /** A stream with a thread of its own, which ends with the last handle, after what was submitted.
   */
  static Stream worker();

  /** Whether operations run on the calling thread. */
  bool is_inline() const { return worker_ == nullptr; }

  Event submit(std::function<void()> operation) const;
  /** What is submitted from now on starts after the operation of `event` has ended. */
  void wait(const Event& event) const;
  /** Blocks until everything submitted so far has ended. Exceptions stay in their events. */
  void synchronize() const;

 private:
  class Worker;
  std::shared_ptr<Worker> worker_;
};

}  // namespace tutti
