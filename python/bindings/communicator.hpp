// The communicator as Python holds it, and the one way in which calls on it block.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.hpp"
#include "lifetime.hpp"
#include "log.hpp"
#include "tutti/communicator.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::python {

/** What ends a wait when a signal handler of Python has raised an exception. */
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted by a signal"; }
};

/** Lets Python's signal handlers and logger run during a wait, and keeps what they raise. */
class SignalWatch {
 public:
  /** Throws Interrupted if a handler has raised an exception. */
  void look() {
    const py::gil_scoped_acquire held;
    try {
      pass_on_log();
      if (PyErr_CheckSignals() == 0) return;
      raised_.emplace();
    } catch (py::error_already_set& raised) {
      raised_.emplace(std::move(raised));
    }
    throw Interrupted();
  }
  py::error_already_set raised() { return std::move(*raised_); }

 private:
  std::optional<py::error_already_set> raised_;
};

/** Whether this is the thread on which Python runs signal handlers. */
bool on_main_thread();

/**
 * Calls what may block: without the GIL, and so that Python's signal handlers run meanwhile. If one
 * of them raises, the wait ends, `on_interrupt` is called, and the exception goes on to the caller.
 * All blocking calls of the bindings go through here.
 */
template <class Call, class OnInterrupt>
auto blocking(Call&& call, OnInterrupt&& on_interrupt) {
  SignalWatch signals;
  const auto watched = [&] {
    const py::gil_scoped_release released;
    std::optional<InterruptCheck> check;
    if (on_main_thread()) check.emplace([&signals] { signals.look(); });
    return call();
  };
  try {
    if constexpr (std::is_void_v<decltype(call())>) {
      watched();
      pass_on_log();
    } else {
      auto result = watched();
      pass_on_log();
      return result;
    }
  } catch (const Interrupted&) {
    on_interrupt();
    throw signals.raised();
  }
}

/** Has the main thread raise `error` as soon as it runs Python code. */
void raise_soon(py::error_already_set error);

/** blocking() for destructors, which cannot throw: what a signal handler raises comes after them.
 */
template <class Call, class OnInterrupt>
void blocking_at_end(Call&& call, OnInterrupt&& on_interrupt) noexcept {
  try {
    try {
      blocking(std::forward<Call>(call), std::forward<OnInterrupt>(on_interrupt));
    } catch (py::error_already_set& error) {
      raise_soon(std::move(error));
    }
  } catch (...) {  // nobody is there to be told
  }
}

/** tutti.Communicator. Closed, it refuses every call. */
class PyCommunicator final : public Closable {
 public:
  explicit PyCommunicator(std::shared_ptr<Communicator> communicator);

  /** Throws CommunicationError if it is closed. */
  Communicator& get() const { return *shared(); }
  std::shared_ptr<Communicator> shared() const;

  /**
   * Makes a blocking call on behalf of this communicator, which works on `arrays`. If it fails in
   * communication, or is interrupted, the communicator is aborted and the arrays live on: between
   * hosts MPI may still touch them.
   */
  template <class Call>
  auto call(std::vector<Array>& arrays, Call&& action) {
    const auto communicator = shared();
    const Busy busy(busy_);
    try {
      return blocking([&] { return action(*communicator); },
                      [&] {
                        communicator->abort(Interrupted().what());
                        keep(arrays);
                      });
    } catch (const CommunicationError&) {
      keep(arrays);
      throw;
    }
  }
  template <class Call>
  auto call(Call&& action) {
    std::vector<Array> none;
    return call(none, std::forward<Call>(action));
  }

  /** The tutti.Event of an operation that has ended well. */
  const py::object& ended() const { return ended_; }
  /** Takes note of an operation on a stream. */
  void add(const Event& event);
  /** Has `arrays`, and `memory`, live as long as this does. */
  void keep(std::vector<Array>& arrays, std::shared_ptr<const void> memory = {});
  void abort(const std::string& reason) const;
  void close(const std::optional<std::string>& reason) override;

 private:
  class Busy {
   public:
    explicit Busy(std::atomic<int>& count) : count_(count) { ++count_; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { --count_; }

   private:
    std::atomic<int>& count_;
  };

  bool is_busy() const;

  std::vector<Array> kept_;  // which outlive the communicator
  std::vector<std::shared_ptr<const void>> kept_memory_;
  std::shared_ptr<Communicator> communicator_;  // null once closed
  std::atomic<int> busy_ = 0;                   // calls under way
  std::deque<Event> events_;                    // of operations on streams that may not have ended
  py::object ended_;  // made once: a new object at each call costs about as much as a small sum
};

/** tutti.Event. */
struct PyEvent {
  Event event;
  std::shared_ptr<PyCommunicator> communicator = {};  // null where the operation has ended
  std::shared_ptr<const Received> received = {};      // of a recv
};

void bind_communicator(py::module_& module);
void bind_collectives(py::class_<PyCommunicator, std::shared_ptr<PyCommunicator>>& communicator);
/** send, recv and exchange, and what they take and give. */
void bind_messages(py::module_& module,
                   py::class_<PyCommunicator, std::shared_ptr<PyCommunicator>>& communicator);
/** Who sent it, and its tag, as a tutti.Received; None if nothing has come. */
py::object received_of(const Received* received);

}  // namespace tutti::python
