// Makes the calls of a program, and compares what comes out with what must.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rig/training.hpp"
#include "rig/trial.hpp"
#include "tutti/communicator.hpp"

namespace tutti::test {

/** Memory of this process and symmetric memory for the arguments of all steps of a program. */
class Workspace {
 public:
  explicit Workspace(const Trial& trial);
  /** Symmetric memory for the steps of the next group, of which this rank is a member unless
   * `group` is null. Collective. */
  void add(Communicator* group);

  /** `count` elements for the input of a step and for its output, which hold nothing sensible. */
  View in(const Step& step, int rank, std::int64_t count) { return at(step, rank, count, false); }
  View out(const Step& step, int rank, std::int64_t count) { return at(step, rank, count, true); }

  /** Writes `value` to all bytes. */
  void fill(unsigned char value);
  /** What no longer holds it, in words; empty if everything does. */
  std::string changed(unsigned char value) const;

 private:
  View at(const Step& step, int rank, std::int64_t count, bool second);

  std::int64_t half_;  // bytes of an argument, with room around it
  std::vector<std::byte> ordinary_;
  std::vector<Buffer> symmetric_;  // by group
};

/** The communicators of a rank and all that it does with them. */
class Steps {
 public:
  /** Splits the world and allocates memory. Collective. `members` is kept up to date: the ranks of
   * the communicator that is in use, in its order. */
  Steps(const Trial& trial, const std::shared_ptr<Communicator>& world, std::vector<int>& members);

  /** Step number `number` of the program. Throws WrongResult, or what tutti throws. */
  void run(const Step& step, std::uint64_t number);
  /** Called when all is ready for the call of a step. */
  std::function<void()> before_call;
  /** Whether the next backward pass is to throw an exception. */
  void interrupt_training(bool yes);
  /** Results that were compared so far. */
  std::int64_t results() const { return results_; }

  /** Lets go of the communicators; the memory stays. */
  void leave();
  Workspace& memory() { return memory_; }

 private:
  void reduction(Communicator& comm, const Step& step, std::uint64_t salt);
  void broadcast(Communicator& comm, const Step& step, std::uint64_t salt);
  void gather(Communicator& comm, const Step& step, std::uint64_t salt);
  void scatter(Communicator& comm, const Step& step, std::uint64_t salt);
  void all_to_all(Communicator& comm, const Step& step, std::uint64_t salt);
  void sparse(Communicator& comm, const Step& step, std::uint64_t salt);
  void to_or_from_root(Communicator& comm, const Step& step, std::uint64_t salt);
  void scatter_v(Communicator& comm, const Step& step, std::uint64_t salt);
  void all_to_all_v(Communicator& comm, const Step& step, std::uint64_t salt);
  void scan(Communicator& comm, const Step& step, std::uint64_t salt);
  void exchange(Communicator& comm, const Step& step, std::uint64_t salt);
  void ring(Communicator& comm, const Step& step, std::uint64_t salt);
  void split(Communicator& comm);
  std::vector<std::shared_ptr<Communicator>> split_all(const std::shared_ptr<Communicator>& world);
  void allocate(Communicator& comm, const Step& step);

  /** How much of `count` elements is of `rank`, or for it: none, all or half. */
  static std::int64_t part_of(std::int64_t count, std::uint64_t salt, int rank);

  const Trial& trial_;
  std::vector<int>& members_;
  std::vector<std::shared_ptr<Communicator>> groups_;  // null where this rank is not a member
  Workspace memory_;
  std::optional<Training> training_;
  std::optional<Stream> sending_;
  std::int64_t results_ = 0;
};

}  // namespace tutti::test
