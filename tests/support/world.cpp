// Communicators for multi-rank tests, however the ranks were launched.
#include "support/world.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "tutti/error.hpp"

namespace tutti::test {
namespace {

int parse_number(std::string_view text, std::string_view layout) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    throw InvalidArgument("host layout '" + std::string(layout) + "' is not like 2x2, 2+1 or 0,1");
  }
  return number;
}

std::vector<int> parse_list(std::string_view layout, char separator) {
  std::vector<int> numbers;
  for (std::string_view rest = layout;;) {
    const std::size_t at = rest.find(separator);
    numbers.push_back(parse_number(rest.substr(0, at), layout));
    if (at == std::string_view::npos) return numbers;
    rest.remove_prefix(at + 1);
  }
}

/** What a rank's body throws becomes a failure of the test, with the rank's name. */
void guarded(int rank, const std::function<void()>& body) {
  SCOPED_TRACE("on rank " + std::to_string(rank));
  try {
    body();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw: " << error.what();
  }
}

/**
 * Brings the ranks under mpiexec together again: making a communicator is collective, and one
 * test may have kept some ranks longer than others wait there. Nothing before MPI is initialised.
 */
void gather_under_mpi() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised == 0) return;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "rank %d: the others did not come to the next test\n", world().rank);
      std::_Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

bool World::one_host() const {
  return std::all_of(hosts.begin(), hosts.end(), [&](int host) { return host == hosts[0]; });
}

World& world() {
  static World the_world;
  return the_world;
}

UniqueId derive(const UniqueId& base, std::uint64_t number) {
  std::array<std::byte, UniqueId::kBytes> bytes = base.bytes();
  std::memcpy(bytes.data(), &number, sizeof number);
  return UniqueId::from_bytes(bytes);
}

std::vector<int> parse_hosts(std::string_view layout, int ranks) {
  std::vector<int> hosts;
  if (layout.empty()) {
    hosts.assign(static_cast<std::size_t>(ranks), 0);
  } else if (layout.find(',') != std::string_view::npos) {
    hosts = parse_list(layout, ',');
  } else {
    const bool grid = layout.find('x') != std::string_view::npos;
    std::vector<int> sizes = parse_list(layout, grid ? 'x' : '+');
    if (grid && sizes.size() == 2) {
      sizes.assign(static_cast<std::size_t>(sizes[0]), sizes[1]);
    }
    for (std::size_t host = 0; host < sizes.size(); ++host) {
      hosts.insert(hosts.end(), static_cast<std::size_t>(sizes[host]), static_cast<int>(host));
    }
  }
  if (hosts.size() != static_cast<std::size_t>(ranks)) {
    throw InvalidArgument("host layout '" + std::string(layout) + "' is not one of " +
                          std::to_string(ranks) + " ranks");
  }
  return hosts;
}

CommOptions short_timeout(std::chrono::milliseconds timeout) {
  CommOptions options;
  options.timeout = timeout;
  return options;
}

void on_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank] { guarded(rank, [&] { body(rank); }); });
  }
}

RankTest::RankTest() { ++world().tests; }

void RankTest::on_ranks(const Body& body, const CommOptions& options) {
  const World& here = world();
  if (here.launch == Launch::threads) {
    const UniqueId id = UniqueId::create();
    on_threads(here.ranks, [&](int rank) {
      Communicator communicator(rank, here.ranks, id, options);
      body(communicator);
    });
    return;
  }
  // Numbered by test and call, so that ranks meet again in the next test after one went wrong.
  const UniqueId id = derive(here.base, here.tests << 16U | calls_++);
  const bool on_mpi = here.launch == Launch::mpi;
  if (on_mpi) gather_under_mpi();
  std::optional<Communicator> made;
  guarded(here.rank, [&] {
    if (on_mpi) {
      made.emplace(options);
    } else {
      made.emplace(here.rank, here.ranks, id, options);
    }
  });
  // News of a failure may be faster than the last message of a rank that is still making its own.
  if (on_mpi) gather_under_mpi();
  if (!made) return;
  guarded(here.rank, [&] {
    Communicator communicator = std::move(*made);  // an exception passes its scope
    body(communicator);
  });
}

void RankTest::expect_mismatch(const std::vector<std::string>& shown, const Body& calls) {
  on_ranks([&](Communicator& comm) {
    try {
      comm.barrier();  // who comes late to the end of it may hear of the mismatch there
      calls(comm);
      comm.barrier();  // who waits for nobody finds out here
      ADD_FAILURE() << "rank " << comm.global_rank() << " noticed nothing";
    } catch (const MismatchError& error) {
      for (const std::string& part : shown) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  });
}

UniqueId agree_on_ticket(Communicator& communicator) {
  std::array<std::byte, UniqueId::kBytes> bytes = UniqueId::create().bytes();
  communicator.broadcast(View(bytes.data(), static_cast<std::int64_t>(bytes.size()), DType::u8), 0);
  return UniqueId::from_bytes(bytes);
}

}  // namespace tutti::test
