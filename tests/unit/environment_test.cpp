// What the environment says is checked where a communicator is made.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/environment.hpp"
#include "comm/agreement.hpp"
#include "comm/communicator/options.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

/** Sets an environment variable for a while. */
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    if (before_.empty()) {
      ::unsetenv(name_);
    } else {
      ::setenv(name_, before_.c_str(), 1);
    }
  }

 private:
  const char* name_;
  std::string before_;
};

void join_alone() { Communicator(0, 1, UniqueId::create()); }

struct Setting {
  const char* name;
  const char* value;
  bool good;
};

class Environment : public ::testing::TestWithParam<Setting> {};

TEST_P(Environment, IsTakenOrRefusedByNameAndValue) {
  const Setting& setting = GetParam();
  const Variable variable(setting.name, setting.value);
  if (setting.good) {
    EXPECT_NO_THROW(join_alone());
    return;
  }
  try {
    join_alone();
    ADD_FAILURE() << setting.name << "=" << setting.value << " was not refused";
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find(setting.name), std::string::npos) << what;
    EXPECT_NE(what.find(setting.value), std::string::npos) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Environment,
    ::testing::Values(
        Setting{"TUTTI_LOG", "warn", true}, Setting{"TUTTI_LOG", "debug", true},
        Setting{"TUTTI_LOG", "loud", false}, Setting{"TUTTI_LOG", "WARN", false},
        Setting{"TUTTI_TIMEOUT", "2.5", true}, Setting{"TUTTI_TIMEOUT", "0", false},
        Setting{"TUTTI_TIMEOUT", "5s", false}, Setting{"TUTTI_TIMEOUT", "nan", false},
        Setting{"TUTTI_SPARSE", "split", true}, Setting{"TUTTI_SPARSE", "thin", false},
        Setting{"TUTTI_BETWEEN_HOSTS", "tcp", true}, Setting{"TUTTI_BETWEEN_HOSTS", "mpi", true},
        Setting{"TUTTI_BETWEEN_HOSTS", "ib", false}, Setting{"TUTTI_GPU_CHECK", "all", true},
        Setting{"TUTTI_GPU_CHECK", "-1", false}));

TEST(ChooseDevice, SpreadsTheRanksOfAHostOverItsGpus) {
  EXPECT_EQ(choose_device(3, 0), Device{});
  EXPECT_EQ(choose_device(3, 1), (Device{DeviceKind::cuda, 0}));
  EXPECT_EQ(choose_device(3, 2), (Device{DeviceKind::cuda, 1}));
  EXPECT_EQ(choose_device(3, 8), (Device{DeviceKind::cuda, 3}));
}

TEST(ChooseDevice, DoesAsItIsTold) {
  {
    const Variable cpu("TUTTI_DEVICE", "cpu");
    EXPECT_EQ(choose_device(0, 4), Device{});
  }
  {
    const Variable second("TUTTI_DEVICE", "1");
    EXPECT_EQ(choose_device(0, 4), (Device{DeviceKind::cuda, 1}));
    EXPECT_THROW(choose_device(0, 1), InvalidArgument);
  }
  for (const char* wrong : {"gpu", "-1", "1x"}) {
    const Variable variable("TUTTI_DEVICE", wrong);
    EXPECT_THROW(choose_device(0, 4), InvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace tutti
