// Bytes in a file.
#include "support/roll_call.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tutti/error.hpp"

namespace tutti::test {

RollCall::RollCall(Communicator& comm) : rank_(comm.global_rank()), ranks_(comm.world_size()) {
  const std::string path =
      ::testing::TempDir() + "roll-call-" + agree_on_ticket(comm).to_string().substr(0, 16);
  file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file_) throw SystemError("cannot open " + path, errno);
  comm.barrier();
  ::unlink(path.c_str());
}

void RollCall::come() const {
  if (::pwrite(file_.get(), "!", 1, rank_) != 1) throw SystemError("cannot write", errno);
}

bool RollCall::wait_for_others() const {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::vector<char> seen(static_cast<std::size_t>(ranks_));
  while (std::chrono::steady_clock::now() < limit) {
    if (::pread(file_.get(), seen.data(), seen.size(), 0) < 0) {
      throw SystemError("cannot read", errno);
    }
    int missing = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank != rank_ && seen[static_cast<std::size_t>(rank)] == 0) ++missing;
    }
    if (missing == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace tutti::test
