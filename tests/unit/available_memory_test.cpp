// How much memory there is, as files of the kernel say it.
#include "base/available_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/folder.hpp"

namespace tutti {
namespace {

/** A folder with the files that a test puts there, in the place of proc and sys. */
class MachineMemory : public ::testing::Test {
 protected:
  void SetUp() override { put("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"); }

  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::int64_t available() const { return machine_memory(root_); }

 private:
  test::Folder folder_;
  std::string root_ = folder_.path();
};

TEST_F(MachineMemory, IsWhatTheKernelSays) { EXPECT_EQ(available(), 8000 * 1024); }

TEST_F(MachineMemory, IsNotMoreThanItsCgroupLeaves) {
  put("/proc/self/cgroup", "0::/jobs/one\n");
  put("/sys/fs/cgroup/memory.stat", "inactive_file 1\n");  // the root has no limit
  put("/sys/fs/cgroup/jobs/memory.max", "7000000\n");
  put("/sys/fs/cgroup/jobs/memory.current", "3000000\n");
  put("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
  put("/sys/fs/cgroup/jobs/one/memory.current", "1000000\n");
  EXPECT_EQ(available(), 4000000);
  put("/sys/fs/cgroup/jobs/one/memory.max", "2500000\n");
  EXPECT_EQ(available(), 1500000);
  put("/sys/fs/cgroup/jobs/one/memory.stat", "anon 5\ninactive_file 300000\nactive_file 70\n");
  EXPECT_EQ(available(), 1800070);  // the page cache makes room
  put("/sys/fs/cgroup/jobs/one/memory.current", "9000000\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(MachineMemory, IsNotMoreThanACgroupOfVersionOneLeaves) {
  put("/proc/self/cgroup", "5:devices:/\n4:cpu,memory:/docker/of/the/host\n0::/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000000\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
  put("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 11\ntotal_active_file 22\n");
  EXPECT_EQ(available(), 5000033);
}

TEST(AvailableMemory, FitsWhatAllRanksNeedTogether) {
  const AvailableMemory available{1000, 600};
  EXPECT_TRUE(available.fits(300, 2));
  EXPECT_FALSE(available.fits(301, 2));
  EXPECT_FALSE(available.fits(std::int64_t{1} << 46, 1 << 20));
  EXPECT_EQ(available.describe(), "/dev/shm has 1000 bytes free, the machine 600 bytes of memory");
}

TEST(AvailableMemory, IsFoundOnThisMachine) {
  const AvailableMemory available = available_memory();
  EXPECT_GT(available.directory, 0);
  EXPECT_GT(available.memory, 0);
  EXPECT_LT(available.memory, std::int64_t{1} << 50);
}

}  // namespace
}  // namespace tutti
