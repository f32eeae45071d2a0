// The exceptions that tutti throws: one tree under tutti::Error.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace tutti {

/** Root of everything that tutti throws on its own account. */
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
};

/** An argument was refused. The message names the argument and its value; nothing was changed. */
class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(const std::string& what) : Error(what) {}
};

/** A call to the operating system failed, for example because /dev/shm is full. */
class SystemError : public Error {
 public:
  SystemError(const std::string& what, int error_number);

  /** The errno of the failed call. */
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

/** The build or the machine lacks what was asked for, for example a GPU. */
class BackendUnavailable : public Error {
 public:
  explicit BackendUnavailable(const std::string& what) : Error(what) {}
};

/** What was waited for was not there before the deadline. Nothing is broken: the call may be made
 * again. */
class DeadlineExceeded : public Error {
 public:
  explicit DeadlineExceeded(const std::string& what) : Error(what) {}
};

/**
 * Communication failed. The communicator that threw it refuses every further call with the same
 * explanation (a PeerLost after a PeerLost, so that the lost ranks stay named); it can still be
 * destroyed, and destroying it does not wait for anybody.
 */
class CommunicationError : public Error {
 public:
  explicit CommunicationError(const std::string& what) : Error(what) {}
};

/** A rank died, left, or did not answer before the deadline. The message names it as `rank N`. */
class PeerLost : public CommunicationError {
 public:
  /** `reason` completes the sentence "lost rank N: ...". */
  PeerLost(std::vector<int> ranks, const std::string& reason);

  /** The global ranks that were lost, ascending. */
  const std::vector<int>& ranks() const { return ranks_; }
  /** Why: what ended the rank, as far as that is known, or what it gave up for. */
  const std::string& reason() const { return reason_; }

 private:
  std::vector<int> ranks_;
  std::string reason_;
};

/**
 * The ranks asked for different things in the same collective. The message shows what each rank
 * asked for. No output buffer was written (see Communicator::broadcast() for an exception).
 */
class MismatchError : public CommunicationError {
 public:
  explicit MismatchError(const std::string& what) : CommunicationError(what) {}
};

}  // namespace tutti
