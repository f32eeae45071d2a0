// Descriptors of workers and servers, of which a process may have few.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "comm/shm/memory/segment.hpp"
#include "ps/echo.hpp"
#include "ps/table/table.hpp"
#include "support/few_descriptors.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::ps::test::descriptors_test {
namespace {

std::int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(PsDescriptors, AReaderOfATableKeepsNone) {
  const TableIdentity identity{{.name = "item", .dim = 1, .dict_size = 100}, 1, 0, 1};
  const std::string name = shm::segment_name(UniqueId::create(), "table");
  const Table table(identity, name);
  const std::int64_t before = open_descriptors();
  const TableReader reader(identity, name);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(PsDescriptors, AServerThatHasNoneForACallSaysSo) {
  Place place = listen_as(0);
  const mpi::Socket caller = mpi::start_connecting(mpi::loopback_address(), place.endpoint.port);
  const std::vector<Name> workers = worker_names(1);
  const tutti::test::FewDescriptors none(0);
  const std::string text = tutti::test::text_of<SystemError>([&] {
    meet_workers(std::move(place.listener), workers, {"alike"}, {}, "", std::chrono::seconds(5));
  });
  EXPECT_EQ(text, "cannot take the call of a worker: Too many open files");
}

}  // namespace
}  // namespace tutti::ps::test::descriptors_test
