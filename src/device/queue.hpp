// What is behind an Event and a Stream: one implementation for each kind of device.
#pragma once

#include <functional>
#include <memory>

#include "tutti/device.hpp"

namespace tutti {

/** The completion of one operation. All calls are safe from several threads. */
class Event::State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;

  virtual bool ready() = 0;
  virtual void wait() = 0;
};

/** Runs operations in order. See Stream for what the calls promise. */
class Stream::Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;

  virtual Device device() const { return {}; }
  virtual void* native() const { return nullptr; }
  virtual std::shared_ptr<Event::State> submit(std::function<void()> operation,
                                               std::shared_ptr<Watch> watch) = 0;
  virtual void wait(const Event& event) = 0;
  virtual void synchronize() = 0;
  virtual Buffer allocate(std::int64_t bytes) = 0;
  /** Arguments have been checked. */
  virtual std::shared_ptr<Event::State> copy(View out, ConstView in) = 0;
  virtual std::shared_ptr<Event::State> fill_with_zeros(View out) = 0;
};

/** Memory of the CPU, aligned to cache lines. Throws SystemError if it is short. */
Buffer allocate_on_cpu(std::int64_t bytes);

}  // namespace tutti
