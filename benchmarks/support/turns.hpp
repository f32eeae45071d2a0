// Lets several ways of one collective take turns, and times them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/call.hpp"
#include "tutti/communicator.hpp"

namespace tutti::bench {

/** One way to do a collective. */
struct Variant {
  std::string name;
  Call call;
  std::function<void()> run;
  bool performs = true;           ///< leaves the collective's result: not if it stands for a limit
  bool learns = false;            ///< tries several ways first: warmed up until it has chosen
  std::vector<double> seconds{};  ///< of the slowest rank, one a round
};

/**
 * Times the variants in turns for about `seconds`, five rounds at least, after a warm-up, each
 * round in an order of its own: what one leaves behind meets all others. Every rank rewrites its
 * data before each operation, and reads and checks it afterwards. Below 4 KiB a loop of operations
 * is timed together with the rewriting. Collective over MPI_COMM_WORLD, which must be the ranks of
 * `comm`. False if a result was wrong on any rank; says so on stderr.
 */
bool take_turns(Communicator& comm, std::vector<Variant>& variants, double seconds);

/** In microseconds. */
double median_us(std::vector<double> seconds);

}  // namespace tutti::bench
