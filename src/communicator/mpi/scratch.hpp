// Memory for the length of one operation over MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "communicator/mpi/session.hpp"

namespace tutti::mpi {

/**
 * Uninitialised memory that messages read or write. If an exception ends the operation, MPI may
 * still touch it whenever anybody calls MPI: then it is never freed.
 */
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes)
      : memory_(std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes))),
        exceptions_(std::uncaught_exceptions()) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch(Scratch&&) noexcept = default;
  Scratch& operator=(Scratch&&) noexcept = default;
  ~Scratch() {
    if (memory_ && std::uncaught_exceptions() > exceptions_)
      Session::leave_to_mpi(std::move(memory_));
  }

  std::byte* data() const { return memory_.get(); }

 private:
  std::shared_ptr<std::byte[]> memory_;
  int exceptions_;
};

}  // namespace tutti::mpi
