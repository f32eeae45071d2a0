// Memory, streams and events of a device.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "tutti/dtype.hpp"

namespace tutti {

/**
 * How many GPUs this process can use. 0 where the build, the driver or the device is missing: the
 * log says once which. The first call touches the driver, after which a process should not fork.
 */
int gpu_count();

/**
 * In whose memory `data` lies: a GPU's, managed memory included, or else the CPU's. A null pointer
 * belongs to the GPU that is current on this thread. The CPU's where gpu_count() is 0.
 */
Device device_of(const void* data);

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

  /** Page-locked memory of the CPU, which GPUs copy from and to without a detour. Throws
   * BackendUnavailable where there is no GPU. */
  static Buffer pinned(std::int64_t bytes);

  /** Where the memory begins; null if there is none. */
  void* data() const { return data_; }
  /** How long it is. */
  std::int64_t bytes() const { return bytes_; }
  /** Whose it is. */
  Device device() const { return device_; }

  /** The buffer as elements; a remainder smaller than one element is left out. */
  View view(DType dtype) const { return {data_, bytes_ / size_of(dtype), dtype, device_}; }
  /** The buffer, in memory of the CPU, as elements of type T; as view(). */
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

  /** What an event is on its device; for the library alone. */
  class State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/**
 * Runs operations one after the other, in the order in which they were submitted. Copies are
 * handles of the same stream.
 *
 * The default stream runs each operation on the calling thread before submit() returns, and lets
 * its exception through. A worker stream runs them on a thread of its own, so that they overlap
 * with what the caller does; an exception waits in the operation's Event. A GPU's stream is a
 * cudaStream_t: an operation launches work on it, from the calling thread, and has ended when the
 * GPU has done that work.
 */
class Stream {
 public:
  /** The inline stream. */
  Stream() = default;
  /** A stream with a thread of its own, which ends with the last handle, after what was submitted.
   */
  static Stream worker();
  /** A stream of the library's own on a GPU, apart from the default stream. Throws InvalidArgument
   * if `device` is not one of gpu_count(), BackendUnavailable if there is none. */
  static Stream on(Device device);
  /** A cudaStream_t of the caller's, which outlives all handles and events; null is the GPU's
   * default stream. Throws as on() does. */
  static Stream borrow(Device device, void* cuda_stream);

  /** Whether operations run on the calling thread. */
  bool is_inline() const { return queue_ == nullptr; }
  /** Whether both are handles of one stream; two that were borrow()ed are not. */
  friend bool operator==(const Stream&, const Stream&) = default;
  /** Whose work the stream runs. */
  Device device() const;
  /** The cudaStream_t; null on the CPU. */
  void* native() const;

  /** Looks after the other ranks while somebody waits for a GPU. Any thread may call it. */
  class Watch {
   public:
    Watch() = default;
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    virtual ~Watch() = default;

    /** Called now and then by a wait for an operation, or for a later one of its stream, with the
     * time that the wait has lasted; what it throws ends the wait, and all later ones. */
    virtual void look(std::chrono::milliseconds waited) = 0;
    /** Called when such an operation is first seen to have ended. Throws unless it has done so by
     * itself: what is aborted ends like any other work. */
    virtual void ended() = 0;
    /** Whether neither of them throws, now or later: nothing is watched any more. */
    virtual bool is_over() const = 0;
  };

  /**
   * Runs `operation` after what was submitted before. On the default stream it has run when this
   * returns, and what it throws is thrown here. A worker stream returns at once; what it throws is
   * thrown by the Event. A GPU's stream runs it here, with the device current: what it throws is
   * thrown here, and what the GPU then does ends with the Event. `watch` looks after the other
   * ranks while somebody waits for that; streams of the CPU do not look at it.
   */
  Event submit(std::function<void()> operation, std::shared_ptr<Watch> watch = {}) const;
  /**
   * What is submitted from now on starts after the operation of `event` has ended. Between two
   * GPU streams nothing waits but the GPU.
   */
  void wait(const Event& event) const;
  /** Blocks until everything submitted so far has ended. Exceptions stay in their events; on a GPU
   * it throws what an event submitted now would. */
  void synchronize() const;

  /**
   * `bytes` bytes, not initialised, of the stream's device, for what is submitted from now on. On
   * a GPU they come from a pool without waiting, and go back to it after what the stream was given
   * before the buffer ended. Throws SystemError if memory is short.
   */
  Buffer allocate(std::int64_t bytes) const;
  /** out = in, as an operation of the stream, from and to any device. InvalidArgument unless both
   * have the same dtype and count, or if the CPU is to copy memory of a GPU. */
  Event copy(View out, ConstView in) const;

  /** Sets the bytes of `out` to zero, as an operation of the stream. InvalidArgument unless it is
   * memory of the stream's device. */
  Event fill_with_zeros(View out) const;

  /** What runs the operations; for the library alone. */
  class Queue;
  explicit Stream(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

 private:
  std::shared_ptr<Queue> queue_;
};

}  // namespace tutti
