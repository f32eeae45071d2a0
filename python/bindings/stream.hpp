// tutti.Stream, and the operations on it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "communicator.hpp"

namespace tutti::python {

/** The operation of one call: what it works on lives until it has ended. */
struct Operation {
  Event event;
  std::vector<Array> arrays;
  std::shared_ptr<PyCommunicator> communicator;
  std::shared_ptr<const void> memory;
};

/**
 * Operations of one stream, in its order. Used with the GIL held; other threads may have it, and
 * use the same object, whenever a method drops arrays or aborts.
 */
class Operations {
 public:
  bool empty() const { return list_.empty(); }
  void add(Operation operation) { list_.push_back(std::move(operation)); }
  /** Lets go of those that have ended. What one that has failed works on is its communicator's to
   * keep: between hosts MPI may still touch it. */
  void drop_ended();
  /** The same with all; those that have not ended count as failed. */
  void drop_all();
  /** Aborts the communicators of those that have not ended. */
  void abort(const std::string& reason) const;

 private:
  std::deque<Operation> list_;
};

/** tutti.Stream: a worker, and the operations on it that may not have ended. */
class PyStream final : public Closable {
 public:
  PyStream() : stream_(own<Stream>(Stream::worker())) {}
  /** A stream that is lent to Python, until give_back(). */
  explicit PyStream(const Stream& stream) : stream_(std::make_shared<Stream>(stream)) {}
  ~PyStream() override;

  /** Throws CommunicationError if it is closed. */
  const Stream& stream() const { return *shared(); }
  void add(Operation operation);
  void synchronize();
  /** Closes the stream, on which all goes on; what that works on is now the caller's to keep. */
  Operations give_back();
  void close(const std::optional<std::string>& reason) override;

 private:
  const std::shared_ptr<Stream>& shared() const;

  Operations operations_;
  std::shared_ptr<Stream> stream_;  // null once closed
};

void bind_stream(py::module_& module);

}  // namespace tutti::python
