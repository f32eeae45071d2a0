// How C++ objects that wait, or own threads, live inside a Python process.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tutti::python {

namespace py = pybind11;

/**
 * A new T that is destroyed without the GIL, since that may wait for a thread. In a forked child it
 * is never destroyed: its threads are the parent's, and joining them would wait for ever.
 */
template <class T, class... Arguments>
std::shared_ptr<T> own(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            [process = ::getpid()](T* object) {
                              if (process != ::getpid()) return;
                              if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) {
                                delete object;
                                return;
                              }
                              const py::gil_scoped_release released;
                              delete object;
                            });
}

/** Something to be closed before the interpreter goes, so that nothing of it waits afterwards. */
class Closable {
 public:
  Closable() = default;
  Closable(const Closable&) = delete;
  Closable& operator=(const Closable&) = delete;
  virtual ~Closable() = default;

  /**
   * Ends what is under way, without waiting for other ranks, and lets go of everything. Where an
   * exception is the reason, the other ranks are told it.
   */
  virtual void close(const std::optional<std::string>& reason) = 0;

  /** Whether this is a forked child, which has the object, but not the threads it waits for. */
  bool is_inherited() const { return process_ != ::getpid(); }

 private:
  pid_t process_ = ::getpid();
};

/** Has `object` closed by close_all(), unless it is gone by then. */
void close_at_exit(const std::shared_ptr<Closable>& object);
/** Closes the newest first. Called at the interpreter's exit. */
void close_all(const std::optional<std::string>& reason);

}  // namespace tutti::python
