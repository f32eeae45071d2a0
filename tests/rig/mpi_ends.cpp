// A rank of a job whose last rank stops itself for good: mpi_ends STAGE, under mpiexec.
//
//   init: before it initialises MPI.
//   connect: before it makes a communicator, in a program that initialises MPI itself.
//   step: between two steps.
//   part: between two steps of a part of the communicator.
//   own: between two steps, in a program that initialises MPI itself.
//   exit: it does not stop, but calls std::exit() between two steps.
//
// The others say whom they have lost, and return 0. Where nobody stops, STAGE is "none".
#include <mpi.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace {

using tutti::Communicator;
using tutti::DType;
using tutti::View;
using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kTimeout = 2s;       // of the communicator under test
constexpr std::chrono::milliseconds kStartTimeout = 5s;  // where the start is under test
constexpr std::chrono::milliseconds kStart = 60s;  // of ranks that all come, on a busy machine

void stop_if(bool now) {
  if (now) ::raise(SIGSTOP);
}

void step(Communicator& communicator) {
  float value = 1;
  communicator.all_reduce(View(&value, 1, DType::f32));
}

/** What a helper does that finds no other way out. */
void leave_if(bool now) {
  if (now) std::exit(1);
}

void train(std::string_view stage, bool is_victim) {
  stop_if(stage == "init" && is_victim);
  if (stage == "connect" || stage == "own") {
    MPI_Init(nullptr, nullptr);
    stop_if(stage == "connect" && is_victim);
  }
  const bool is_start = stage == "init" || stage == "connect";
  const Communicator first({.timeout = is_start ? kStartTimeout : kStart});
  Communicator communicator({.timeout = stage == "exit" ? kStart : kTimeout});
  step(communicator);
  auto part = communicator.split(0, 0);
  leave_if(stage == "exit" && is_victim);
  stop_if(stage != "none" && is_victim);
  step(stage == "part" ? *part : communicator);
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the stopped one does not outlive mpiexec
  const std::string_view stage = argc == 2 ? argv[1] : "none";
  const std::string rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const bool is_victim = std::stoi(rank) + 1 == std::stoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
  std::string outcome = "ended";
  try {
    train(stage, is_victim);
  } catch (const tutti::PeerLost& error) {
    outcome = "lost";
    for (const int lost : error.ranks()) outcome += " " + std::to_string(lost);
    outcome += ": " + error.reason();
  } catch (const tutti::Error& error) {
    outcome = error.what();
  }
  std::puts(("rank " + rank + " " + outcome).c_str());
  std::fflush(stdout);
  if (stage == "connect" || stage == "own") MPI_Finalize();
  return 0;
}
