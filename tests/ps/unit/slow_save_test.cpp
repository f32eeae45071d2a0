// Checkpoints on a disk that does not take what is written: nobody else waits for it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "ps/job.hpp"
#include "support/folder.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"
#include "tutti/ps/checkpoint.hpp"

namespace tutti::ps::test::slow_save_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using tutti::test::Folder;
using namespace std::chrono_literals;

constexpr std::int64_t kDim = 4;

/** Stands where a part is to be written, and takes a page of it until it is released: who writes
 * waits as for a disk. It cannot be synchronised, so that the checkpoint fails then. */
class SlowFile {
 public:
  explicit SlowFile(const std::string& path) {
    fs::create_directories(fs::path(path).parent_path());
    if (::mkfifo(path.c_str(), 0600) != 0) throw SystemError(path, errno);
    pipe_.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (::fcntl(pipe_.get(), F_SETPIPE_SZ, 4096) < 0) throw SystemError(path, errno);
  }
  SlowFile(const SlowFile&) = delete;
  SlowFile& operator=(const SlowFile&) = delete;
  ~SlowFile() { release(); }

  bool is_being_written() const {
    int bytes = 0;
    return ::ioctl(pipe_.get(), FIONREAD, &bytes) == 0 && bytes > 0;
  }
  void release() {
    if (reader_.joinable()) return;
    reader_ = std::jthread([this](const std::stop_token& ends) {
      std::array<char, 4096> bytes{};
      while (!ends.stop_requested()) {
        if (::read(pipe_.get(), bytes.data(), bytes.size()) <= 0) std::this_thread::yield();
      }
    });
  }

 private:
  FileDescriptor pipe_;
  std::jthread reader_;
};

/** Takes longer than twice the deadline of a second to write what has come. */
void take_time(SlowFile& part) {
  const auto patience = std::chrono::steady_clock::now() + 20s;
  while (!part.is_being_written() && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(1ms);
  }
  std::this_thread::sleep_for(2500ms);
  part.release();
}

JobOptions options_of(const Mode& mode, int workers, int servers, milliseconds timeout = 20s) {
  JobOptions options{.workers = workers, .servers = servers, .mode = mode};
  options.timeout = timeout;
  options.tables.push_back({.name = "item", .dim = kDim, .rule = Adagrad{}});
  options.dense.push_back({.name = "bias", .shape = {13}, .rule = Adam{}, .initial = {}});
  return options;
}

void train(Worker& worker) {
  std::vector<std::int64_t> ids(512);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  const std::vector<float> ones(ids.size() * kDim, 1.0F);
  worker.push(0, ids, ones);
  worker.push_dense(0, std::span(ones).first(13));
  worker.step();
}

TEST(PsSlowSave, TakesLongerThanTheDeadlineAndNobodyIsLost) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{.staleness = 1})}) {
    const Folder folder;
    Job job(options_of(mode, 2, 2, 1s));
    SlowFile part(folder / job.unfinished_part(0, 0, 1));
    const std::jthread disk([&] { take_time(part); });
    job.run([&](Worker& worker) {
      train(worker);
      if (worker.index() == 0) {
        const std::string text =
            tutti::test::text_of<SystemError>([&] { worker.save(folder.path()); });
        EXPECT_NE(text.find("server-1"), std::string::npos) << text;
      }
      // The other one waits here meanwhile: in sync mode for the round, then for who saves.
      for (int i = 0; i < 3; ++i) train(worker);
      worker.barrier();
      if (worker.index() == 0) worker.save(folder.path());
      worker.barrier();
      EXPECT_TRUE(worker.lost_workers().empty());
      worker.stop();
    });
    EXPECT_EQ(inspect_checkpoint(folder.path()).servers, 2);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
  }
}

TEST(PsSlowSave, AnotherMayWaitAtABarrierForWhoSaves) {
  const Folder folder;
  Job job(options_of(HalfAsync{}, 2, 1, 1s));
  SlowFile part(folder / job.unfinished_part(0, 0, 0));
  const std::jthread disk([&] { take_time(part); });
  job.run([&](Worker& worker) {
    if (worker.index() == 0) {
      EXPECT_THROW(worker.save(folder.path()), SystemError);
    }
    worker.barrier();
    worker.stop();
  });
}

TEST(PsSlowSave, StepsDoNotWait) {
  const Folder folder;
  Job job(options_of(Async{}, 1, 1));
  SlowFile part(folder / job.unfinished_part(0, 0, 0));
  job.run([&](Worker& worker) {
    train(worker);
    std::atomic<bool> saved = false;
    std::jthread saver([&] {
      EXPECT_THROW(worker.save(folder.path()), SystemError);
      saved = true;
    });
    while (!part.is_being_written()) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) {
      train(worker);
      worker.flush();
    }
    EXPECT_FALSE(saved);
    part.release();
    saver.join();
    worker.stop();
  });
}

class Interrupt : public std::exception {};

/** Begins a checkpoint, and does not wait for it. */
void interrupted_save(Worker& worker, const std::string& folder) {
  const InterruptCheck check([] { throw Interrupt(); });
  EXPECT_THROW(worker.save(folder), Interrupt);
}

TEST(PsSlowSave, OneThatNobodyWaitsForGivesWayToTheNext) {
  const Folder folder;
  Job job(options_of(Sync{}, 2, 1));
  SlowFile part(folder / job.unfinished_part(0, 0, 0));
  job.run([&](Worker& worker) {
    train(worker);
    if (worker.index() == 0) interrupted_save(worker, folder.path());
    worker.barrier();
    if (worker.index() == 1) part.release();
    if (worker.index() == 0) worker.save(folder.path());
    train(worker);
    worker.stop();
  });
  EXPECT_EQ(inspect_checkpoint(folder.path()).round, 1);
}

TEST(PsSlowSave, OneWhoseWorkerIsLostIsWaitedForByNobody) {
  const Folder folder;
  Job job(options_of(Async{}, 2, 1));
  SlowFile part(folder / job.unfinished_part(0, 0, 0));
  job.run([&](Worker& worker) {
    train(worker);
    if (worker.index() == 0) return interrupted_save(worker, folder.path());
    while (worker.lost_workers().empty()) {
      train(worker);
      worker.flush();
    }
    part.release();
    worker.save(folder.path());
    worker.stop();
  });
  EXPECT_EQ(inspect_checkpoint(folder.path()).servers, 1);
}

TEST(PsSlowSave, WhoSeesToItAndIsHeardNoMoreIsLostAfterOneDeadline) {
  const Folder folder;
  JobOptions options = options_of(Sync{}, 2, 1);
  options.server_timeout = 2s;
  Job job(options);
  SlowFile part(folder / job.unfinished_part(0, 0, 0));
  std::atomic<bool> lost = false;
  job.run([&](Worker& worker) {
    train(worker);
    if (worker.index() == 0) {
      std::this_thread::sleep_for(300ms);  // the other waits for the round by then
      interrupted_save(worker, folder.path());
      while (!lost) std::this_thread::sleep_for(10ms);
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = tutti::test::text_of<PeerLost>([&] { train(worker); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 3700ms);  // and not twice the deadline
    EXPECT_NE(text.find("worker 0"), std::string::npos) << text;
    lost = true;
    part.release();
  });
}

TEST(PsSave, AllServersSaveTheSameRoundWhateverAnotherThreadDoes) {
  const Folder folder;
  Job job(options_of(Sync{}, 1, 2));
  job.run([&](Worker& worker) {
    std::atomic<bool> ends = false;
    std::jthread trainer([&] {
      while (!ends) train(worker);
    });
    for (int i = 0; i < 25; ++i) worker.save(folder.path());  // of one round, or it would throw
    ends = true;
    trainer.join();
    worker.stop();
  });
}

}  // namespace
}  // namespace tutti::ps::test::slow_save_test
