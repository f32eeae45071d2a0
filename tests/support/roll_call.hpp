// Which ranks have come to a place of a test, whatever has become of their communicators.
#pragma once

#include "base/file_descriptor.hpp"
#include "support/world.hpp"

namespace tutti::test {

/** A byte for each rank in a file that has no name any more: nothing waits in a communicator for
 * who waits here. */
class RollCall {
 public:
  /** Of all ranks of the job, which make it together by `comm`, of all of them. */
  explicit RollCall(Communicator& comm);

  /** This rank has come. */
  void come() const;
  /** Waits for all others to come, ten seconds at most: whether they have. */
  bool wait_for_others() const;

 private:
  int rank_;
  int ranks_;
  FileDescriptor file_;
};

}  // namespace tutti::test
