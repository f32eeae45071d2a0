// What ranks do on hosts whose network is slow or fails: ranks slow|barriers|join DIRECTORY
//
// `slow` moves a few MiB by several calls and checks them; `barriers` goes on until a rank is lost,
// `join` ends at once. Each rank writes what became of it to DIRECTORY/rank.N, since a host may be
// out of reach then.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

constexpr std::int64_t kCount = 5 << 18;  // 5 MiB of floats

void expect(bool holds, const char* what) {
  if (!holds) throw Error(std::string(what) + " gave a wrong result");
}

bool all_are(const std::vector<float>& data, float value) {
  for (const float element : data) {
    if (element != value) return false;
  }
  return true;
}

void move_much(Communicator& communicator) {
  const int rank = communicator.global_rank();
  const int last = communicator.world_size() - 1;
  std::vector<float> data(static_cast<std::size_t>(kCount), rank == 0 ? 7.0F : 0.0F);
  communicator.broadcast(std::span<float>(data), 0);
  expect(all_are(data, 7.0F), "broadcast");
  data.assign(data.size(), static_cast<float>(rank));
  if (rank == 0) communicator.send(std::span<const float>(data), last);
  if (rank == last) {
    communicator.recv(std::span<float>(data), 0);
    expect(all_are(data, 0.0F), "send and recv");
  }
  communicator.barrier();  // all but two ranks have waited here while the message travelled
  data.assign(data.size() / 4, 1.0F);
  communicator.all_reduce(std::span<float>(data));
  expect(all_are(data, static_cast<float>(last + 1)), "all_reduce");
  std::vector<float> out(data.size());
  communicator.all_to_all(std::span<const float>(data), std::span<float>(out));
  expect(all_are(out, static_cast<float>(last + 1)), "all_to_all");
}

/** Meets the others, who may take longer to start than the deadline of the test. */
void start_mpi() {
  Communicator communicator(CommOptions{.timeout = std::chrono::seconds(60)});
  communicator.barrier();
}

int run(const std::string& what, const std::string& directory) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string name = directory + "/rank." + (rank == nullptr ? "0" : rank);
  const auto say = [&](const std::string& text) {
    std::ofstream(name + ".new") << text;
    std::rename((name + ".new").c_str(), name.c_str());
  };
  try {
    start_mpi();
    Communicator communicator;
    communicator.barrier();
    say("ready");
    if (what == "slow") move_much(communicator);
    while (what == "barriers") communicator.barrier();
    say("done");
  } catch (const std::exception& error) {
    say(error.what());
  }
  return 0;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return tutti::test::run(argv[1], argv[2]);
}
