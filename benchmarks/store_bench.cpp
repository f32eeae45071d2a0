// What Store's set and get cost, by the size of the value: two forked ranks. Prints medians in
// microseconds: of a set and a get of a key that is there, while the other rank does nothing, and
// of handing a value to a rank that waits for it and getting one back, halved. store_bench
// [ROUNDS].
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "support/median.hpp"
#include "support/numbers.hpp"
#include "tutti/store.hpp"

namespace {

using tutti::bench::median_of;

void require_same(const std::vector<std::byte>& got, const std::vector<std::byte>& expected) {
  if (got.size() == expected.size() && got.front() == expected.front() &&
      got.back() == expected.back()) {
    return;
  }
  std::fprintf(stderr, "store_bench: a wrong value\n");
  std::exit(1);
}

void measure(tutti::Communicator& communicator, tutti::Store& store, std::size_t bytes,
             int rounds) {
  const std::vector<std::byte> value(bytes, std::byte{7});
  const bool first = communicator.global_rank() == 0;
  double set = 0;
  double get = 0;
  communicator.barrier();
  if (first) {
    set = median_of(rounds, [&] { store.set("key", value); });
    get = median_of(rounds, [&] { require_same(store.get("key"), value); });
  }
  communicator.barrier();
  const std::string mine = first ? "ping" : "pong";
  const std::string theirs = first ? "pong" : "ping";
  const double both = median_of(rounds, [&] {
    if (first) store.set(mine, value);
    require_same(store.pop(theirs), value);
    if (!first) store.set(mine, value);
  });
  if (first) std::printf("%10zu %10.2f %10.2f %10.2f\n", bytes, set, get, both / 2);
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? tutti::bench::number_of("ROUNDS", argv[1], 1) : 2000;
  const tutti::UniqueId id = tutti::UniqueId::create();
  const pid_t child = fork();
  {
    tutti::Communicator communicator(child == 0 ? 1 : 0, 2, id);
    tutti::Store store(communicator);
    if (child != 0) std::printf("     bytes     set us     get us    hand us\n");
    for (const std::size_t bytes : {8U, 1024U, 16384U, 65536U, 1048576U, 16777216U}) {
      measure(communicator, store, bytes, bytes > 100'000 ? std::max(rounds / 20, 20) : rounds);
    }
    communicator.barrier();
  }
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "store_bench: %s\n", error.what());
  return 1;
}
