// A process of a small job, whose place the environment says.
// The worker that is lost kills itself in the middle of the training; the others wait until that is
// known, and check what they then have. The server that is lost kills itself as soon as workers
// push, which they do until they hear of it. Ends with 0, or prints what went wrong and ends
// with 1.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/refuse.hpp"
#include "ps/small_job.hpp"
#include "support/options.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps {
namespace {

constexpr const char* kHelp =
    R"(ps_job [OPTIONS]: a worker or a server of a small job, as the environment says

  --seed N              of the job
  --mode NAME           async or sync (async)
  --timeout SECONDS     of the job
  --lost WORKER         which kills itself in the middle
  --lost-server SERVER  which kills itself as soon as workers push
  --help                this text
)";

struct Arguments {
  bool help = false;
  FleetOptions job = test::small_job(Async{});
  bool divides = false;
  int lost = -1;
  int lost_server = -1;
};

Arguments parse(std::span<char* const> words) {
  using tutti::test::number_of;
  Arguments arguments;
  const auto take = [&arguments](std::string_view name, const std::string& value) {
    if (name == "--seed") {
      arguments.job.seed = number_of<std::uint64_t>(name, value);
    } else if (name == "--timeout") {
      arguments.job.timeout = std::chrono::seconds(number_of<std::uint16_t>(name, value));
    } else if (name == "--lost") {
      arguments.lost = number_of<std::uint16_t>(name, value);
    } else if (name == "--lost-server") {
      arguments.lost_server = number_of<std::uint16_t>(name, value);
    } else if (name == "--mode") {
      if (value != "async" && value != "sync") refuse("--mode is '", value, "', not async or sync");
      arguments.divides = value == "sync";
      if (arguments.divides) arguments.job.mode = Sync{};
    } else {
      return false;
    }
    return true;
  };
  arguments.help = !tutti::test::take_options(words, take);
  return arguments;
}

/** All but one worker train; that one has pushed as well, but one step alone. */
std::string work_without_one(Worker& worker, int lost) {
  if (worker.index() == lost) {
    worker.push_dense(worker.parameter("bias"), std::vector<float>(4, 1.0F));
    ::kill(::getpid(), SIGKILL);  // the batch has not ended, so nothing of it counts
  }
  test::train(worker, 1.0F);
  worker.flush();
  worker.barrier();  // of those that live
  while (worker.lost_workers().empty()) {
    worker.push_dense(worker.parameter("bias"), std::vector<float>(4, 0.0F));
    worker.step();  // servers tell of losses when they are told something
    worker.flush();
  }
  std::string wrong = test::wrong_results(worker, worker.count() - 1);
  worker.barrier();
  worker.stop();
  return wrong;
}

int run(const Arguments& arguments) {
  Fleet fleet(Placement::environment(), arguments.job);
  if (fleet.is_server()) {
    std::jthread killer;
    if (fleet.server().index() == arguments.lost_server) {
      killer = std::jthread([&server = fleet.server()] {
        while (server.stats().pushes == 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ::kill(::getpid(), SIGKILL);
      });
    }
    fleet.server().run();
    for (const int worker : fleet.server().stats().lost_workers) {
      std::printf("lost worker %d\n", worker);
    }
    return 0;
  }
  while (arguments.lost_server >= 0) test::train(fleet.worker(), 1.0F);
  const std::string wrong = arguments.lost >= 0 ? work_without_one(fleet.worker(), arguments.lost)
                                                : test::work(fleet.worker(), arguments.divides);
  std::printf("%s", wrong.empty() ? "trained\n" : wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

int start(std::span<char* const> words) {
  Arguments arguments;
  try {
    arguments = parse(words);
  } catch (const InvalidArgument& error) {
    std::fprintf(stderr, "ps_job: %s\n", error.what());
    return 2;
  }
  if (!arguments.help) return run(arguments);
  std::fputs(kHelp, stdout);
  return 0;
}

}  // namespace
}  // namespace tutti::ps

int main(int argc, char** argv) {
  try {
    return tutti::ps::start({argv + 1, argv + argc});
  } catch (const tutti::MismatchError& error) {
    std::printf("mismatch: %s\n", error.what());
  } catch (const tutti::PeerLost& error) {
    std::printf("lost: %s\n", error.what());
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  return 1;
}
