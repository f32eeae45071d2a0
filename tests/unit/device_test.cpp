// Buffers, streams and events.
#include "tutti/device.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

TEST(Buffer, OwnsWhatItWasGiven) {
  auto memory = std::make_shared<std::vector<float>>(10, 1.0F);
  const std::weak_ptr<void> alive = memory;
  Buffer buffer(memory->data(), 40, memory);
  memory.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(buffer.bytes(), 40);
  EXPECT_EQ(buffer.as<float>().size(), 10U);
  EXPECT_EQ(buffer.as<double>().size(), 5U);
  EXPECT_EQ(buffer.as<float>()[9], 1.0F);
  buffer = Buffer();
  EXPECT_TRUE(alive.expired());
}

TEST(Buffer, MovesAndLeavesAnEmptyOne) {
  auto first = std::make_shared<int>(1);
  auto second = std::make_shared<int>(2);
  Buffer a(first.get(), 4, first);
  Buffer b(second.get(), 4, second);
  a = std::move(b);
  EXPECT_EQ(a.data(), second.get());
  EXPECT_EQ(first.use_count(), 1) << "what was assigned to lets go at once";
  Buffer c(std::move(a));
  EXPECT_EQ(c.data(), second.get());
  EXPECT_EQ(second.use_count(), 2);
}

TEST(Stream, InlineRunsOnTheCallingThread) {
  const Stream stream;
  EXPECT_TRUE(stream.is_inline());
  std::thread::id where;
  const Event event = stream.submit([&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_TRUE(event.ready());
  event.wait();
}

TEST(Stream, InlineLetsExceptionsThrough) {
  const Stream stream;
  EXPECT_THROW(stream.submit([] { throw std::logic_error("no"); }), std::logic_error);
}

TEST(Stream, AWorkerRunsOnOneThreadOfItsOwnInOrder) {
  const Stream stream = Stream::worker();
  EXPECT_FALSE(stream.is_inline());
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 100; ++i) {
    stream.submit([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  stream.synchronize();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  for (const std::thread::id id : threads) EXPECT_EQ(id, threads.front());
}

TEST(Stream, AWorkerDoesNotMakeTheCallerWait) {
  const Stream stream = Stream::worker();
  std::promise<void> go;
  const Event event = stream.submit([&] { go.get_future().wait(); });
  EXPECT_FALSE(event.ready());
  go.set_value();
  event.wait();
  EXPECT_TRUE(event.ready());
}

TEST(Stream, WorksOnAThreadOfTheLibrarysOwn) {
  bool is_own = false;
  Stream::worker().submit([&] { is_own = is_own_thread(); }).wait();
  EXPECT_TRUE(is_own);
  EXPECT_FALSE(is_own_thread());
  std::thread([&] { is_own = is_own_thread(); }).join();
  EXPECT_FALSE(is_own);
}

TEST(Stream, GetsACoreSoonWhereLinuxCanTell) {
  std::array<std::uint64_t, 6> attributes{};  // as Linux has them: the fourth is the turn
  Stream::worker()
      .submit([&] { ::syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0); })
      .wait();
  utsname system{};
  ASSERT_EQ(::uname(&system), 0);
  int version = 0;
  char dot = 0;
  int release = 0;
  std::istringstream(system.release) >> version >> dot >> release;
  const bool is_of_all = attributes[0] >> 32U == SCHED_OTHER;
  if (!is_of_all || std::pair(version, release) < std::pair(6, 12)) {
    GTEST_SKIP() << "Linux knows turns from 6.12 on, of the policy of all";
  }
  EXPECT_EQ(attributes[3], 100'000U);
}

TEST(Stream, AnExceptionWaitsInItsEvent) {
  const Stream stream = Stream::worker();
  const Event bad = stream.submit([] { throw std::logic_error("no"); });
  const Event good = stream.submit([] {});
  EXPECT_NO_THROW(stream.synchronize());
  EXPECT_TRUE(bad.ready());
  EXPECT_NO_THROW(good.wait());
  EXPECT_THROW(bad.wait(), std::logic_error);
  EXPECT_THROW(bad.wait(), std::logic_error) << "each time";
}

TEST(Stream, WaitsForAnEventOfAnotherStream) {
  const Stream first = Stream::worker();
  const Stream second = Stream::worker();
  std::promise<void> go;
  std::atomic<bool> first_ran = false;
  const Event event = first.submit([&] {
    go.get_future().wait();
    first_ran = true;
  });
  second.wait(event);
  bool in_order = false;
  const Event after = second.submit([&] { in_order = first_ran; });
  EXPECT_FALSE(after.ready());
  go.set_value();
  after.wait();
  EXPECT_TRUE(in_order);
}

TEST(Stream, AFailedEventIsWaitedForLikeAnyOther) {
  const Stream first = Stream::worker();
  const Stream second = Stream::worker();
  std::promise<void> go;
  const Event bad = first.submit([&] {
    go.get_future().wait();
    throw std::logic_error("no");
  });
  second.wait(bad);
  bool bad_had_ended = false;
  const Event after = second.submit([&] { bad_had_ended = bad.ready(); });
  go.set_value();
  EXPECT_NO_THROW(after.wait());
  EXPECT_TRUE(bad_had_ended);
  EXPECT_THROW(Stream().wait(bad), std::logic_error);
}

TEST(Stream, TheInlineStreamWaitsAtOnce) {
  const Stream worker = Stream::worker();
  std::atomic<bool> ran = false;
  const Event event = worker.submit([&] { ran = true; });
  const Stream stream;
  stream.wait(event);
  EXPECT_TRUE(ran);
}

TEST(Stream, TheLastHandleRunsWhatWasSubmitted) {
  int ran = 0;
  {
    std::optional<Stream> copy;
    {
      const Stream stream = Stream::worker();
      copy = stream;
      for (int i = 0; i < 50; ++i) stream.submit([&] { ++ran; });
    }
    copy->submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 51);
}

TEST(Stream, AnOperationMayHoldTheLastHandle) {
  std::promise<void> done;
  std::promise<void> go;
  {
    const Stream stream = Stream::worker();
    stream.submit([&, stream] {
      go.get_future().wait();
      done.set_value();
    });
  }
  go.set_value();
  done.get_future().wait();
}

TEST(Event, OfNothingIsReady) {
  const Event event;
  EXPECT_TRUE(event.ready());
  event.wait();
}

TEST(Event, MayBeWaitedForByManyThreads) {
  const Stream stream = Stream::worker();
  std::promise<void> go;
  const Event event = stream.submit([&] { go.get_future().wait(); });
  std::atomic<int> through = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        event.wait();
        ++through;
      });
    }
    EXPECT_EQ(through, 0);
    go.set_value();
  }
  EXPECT_EQ(through, 4);
}

TEST(Stream, CopiesAndFillsMemoryOfTheCpu) {
  for (const Stream& stream : {Stream(), Stream::worker()}) {
    EXPECT_EQ(stream.device(), Device{});
    EXPECT_EQ(stream.native(), nullptr);
    std::vector<float> in{1, 2, 3};
    const Buffer out = stream.allocate(12);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(out.data()) % 64, 0U);
    stream.copy(out.view(DType::f32), std::span<const float>(in)).wait();
    EXPECT_EQ(out.as<float>()[2], 3.0F);
    stream.fill_with_zeros(out.view(DType::f32).part(0, 2)).wait();
    EXPECT_EQ(out.as<float>()[1], 0.0F);
    EXPECT_EQ(out.as<float>()[2], 3.0F);
  }
}

TEST(Stream, RefusesCopiesThatCannotBe) {
  std::vector<float> memory(4);
  const Stream stream;
  const View four{std::span<float>(memory)};
  EXPECT_THROW(stream.copy(four, four.part(0, 3)), InvalidArgument);
  EXPECT_THROW(stream.copy(four, ConstView(memory.data(), 4, DType::i32)), InvalidArgument);
  const View gpu(memory.data(), 4, DType::f32, {DeviceKind::cuda, 0});
  EXPECT_THROW(stream.copy(four, gpu), InvalidArgument);
  EXPECT_THROW(stream.copy(gpu, four), InvalidArgument);
  EXPECT_THROW(stream.fill_with_zeros(gpu), InvalidArgument);
  EXPECT_THROW(stream.allocate(-1), InvalidArgument);
}

TEST(Gpu, DoesNotOwnMemoryOfTheHost) {
  const int here = 0;
  EXPECT_EQ(device_of(&here), Device{});
}

TEST(Gpu, IsRefusedWhereThereIsNone) {
  EXPECT_THROW(Stream::on(Device{}), InvalidArgument) << "the CPU has worker()";
  const Device none{DeviceKind::cuda, gpu_count()};
  if (gpu_count() == 0) {
    EXPECT_THROW(Stream::on(none), BackendUnavailable);
    EXPECT_THROW(Stream::borrow(none, nullptr), BackendUnavailable);
    EXPECT_THROW(Buffer::pinned(64), BackendUnavailable);
  } else {
    EXPECT_THROW(Stream::on(none), InvalidArgument);
    EXPECT_THROW(Stream::borrow(none, nullptr), InvalidArgument);
  }
}

}  // namespace
}  // namespace tutti
