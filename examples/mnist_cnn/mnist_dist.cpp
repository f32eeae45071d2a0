// Data-parallel training of a CNN on MNIST: on ranks of a launcher, or with ranks that it forks
// itself.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "blas.hpp"
#include "launch.hpp"
#include "options.hpp"
#include "trainer.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"
#include "tutti/launch.hpp"

namespace {

void complain(const std::string& text) {
  std::fprintf(stderr, "mnist_dist: %s\n", text.c_str());
  std::fflush(stderr);
}

/** What a rank that this program forks needs to join the others. Ranks of a launcher need nothing.
 */
struct Admission {
  int rank;
  int world_size;
  tutti::UniqueId id;
};

std::shared_ptr<tutti::Communicator> make_communicator(const Admission* admission) {
  if (admission == nullptr) return std::make_shared<tutti::Communicator>();
  return std::make_shared<tutti::Communicator>(admission->rank, admission->world_size,
                                               admission->id);
}

/** Joins the other ranks. If tutti refuses a variable of the environment, that is what is wrong
 * with this run, and the ranks meet without them: then one can speak for all. */
std::shared_ptr<tutti::Communicator> join(const Admission* admission, std::string& fault) {
  try {
    return make_communicator(admission);
  } catch (const tutti::InvalidArgument& error) {
    if (fault.empty()) fault = error.what();
    for (const char* name :
         {"TUTTI_TIMEOUT", "TUTTI_LOG", "TUTTI_ISA", "TUTTI_SPARSE", "TUTTI_BETWEEN_HOSTS",
          "TUTTI_GPU_CHECK", "TUTTI_TIMELINE", "TUTTI_FLIGHT"}) {
      unsetenv(name);
    }
    return make_communicator(admission);
  }
}

/** The life of one rank; returns its exit status. `fault`: what is wrong with the options, if
 * anything. */
int run_rank(const mnist::Options& options, std::string fault, const Admission* admission) {
  std::string name = admission == nullptr ? "" : "rank " + std::to_string(admission->rank) + ": ";
  try {
    mnist::use_one_blas_thread();
    const std::shared_ptr<tutti::Communicator> communicator = join(admission, fault);
    name = "rank " + std::to_string(communicator->global_rank()) + ": ";
    try {
      mnist::together(*communicator, [&] {
        if (!fault.empty()) throw std::runtime_error(fault);
      });
      mnist::Trainer(options, communicator).run();
      return 0;
    } catch (const mnist::Refused& refused) {
      const std::string reason = refused.what();
      if (!reason.empty()) complain(reason);
      // mpiexec ends all ranks as soon as one has failed: not before that line is out.
      communicator->barrier();
      return 1;
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
  } catch (const std::exception& error) {
    complain(name + error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string launcher = tutti::launched_by();
    mnist::Options options;
    std::string fault;
    try {
      options = mnist::parse_options({argv + 1, static_cast<std::size_t>(argc - 1)});
      if (options.ranks > 0 && !launcher.empty()) {
        throw mnist::OptionError("--ranks: " + launcher + " has started the ranks already");
      }
    } catch (const mnist::OptionError& error) {
      fault = error.what();
    }
    if (!launcher.empty() && !fault.empty()) return run_rank(options, fault, nullptr);
    if (!fault.empty()) {
      complain(fault);
      return 2;
    }
    if (options.help) {
      std::fputs(mnist::help().c_str(), stdout);
      return 0;
    }
    if (options.ranks == 0) return run_rank(options, "", nullptr);

    // Made before the forks, so that all children hold the same ticket.
    const tutti::UniqueId id = tutti::UniqueId::create();
    return mnist::launch_ranks(options.ranks, [&](int rank) {
      const Admission admission{rank, options.ranks, id};
      return run_rank(options, "", &admission);
    });
  } catch (const std::exception& error) {
    complain(error.what());
    return 1;
  }
}
