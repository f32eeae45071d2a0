// Waits that the caller ends from within.
#include "tutti/interrupt.hpp"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "support/world.hpp"
#include "tutti/communicator.hpp"

namespace tutti {
namespace {

class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

[[noreturn]] void interrupt() { throw Interrupted(); }

/** Two ranks meet; rank 0 calls `wait` under a check that interrupts, while rank 1 does not come.
 * Then the other rank is told about it. */
template <class Wait>
void interrupt_rank_0(const Wait& wait) {
  const UniqueId id = UniqueId::create();
  std::promise<void> interrupted;
  test::on_threads(2, [&](int rank) {
    Communicator comm(rank, 2, id, test::short_timeout());
    if (rank == 0) {
      const InterruptCheck check(interrupt);
      EXPECT_THROW(wait(comm), Interrupted);
      EXPECT_THROW(comm.barrier(), CommunicationError);
      interrupted.set_value();
    } else {
      interrupted.get_future().wait();
      EXPECT_THROW(comm.barrier(), PeerLost);
    }
  });
}

TEST(Interrupt, EndsACollective) {
  interrupt_rank_0([](Communicator& comm) { comm.barrier(); });
}

TEST(Interrupt, EndsAMessage) {
  interrupt_rank_0([](Communicator& comm) {
    float value = 0;
    comm.recv(View(&value, 1, DType::f32), 1);
  });
}

TEST(Interrupt, EndsAnAllocationAndASplit) {
  interrupt_rank_0([](Communicator& comm) { comm.allocate(100); });
  interrupt_rank_0([](Communicator& comm) { comm.split(0, 0); });
}

TEST(Interrupt, EndsTheWaitForTheOthersToCome) {
  for (const int rank : {0, 1}) {
    const InterruptCheck check(interrupt);
    EXPECT_THROW(Communicator(rank, 2, UniqueId::create(), test::short_timeout()), Interrupted);
  }
}

TEST(Interrupt, EndsTheWaitForAnEventAndNotItsOperation) {
  std::promise<void> go;
  const Stream stream = Stream::worker();
  const Event event = stream.submit([&] { go.get_future().wait(); });
  {
    const InterruptCheck check(interrupt);
    EXPECT_THROW(event.wait(), Interrupted);
    EXPECT_THROW(stream.synchronize(), Interrupted);
  }
  EXPECT_FALSE(event.ready());
  go.set_value();
  event.wait();
}

TEST(Interrupt, ACheckMayAskTheEventThatIsWaitedFor) {
  std::promise<void> go;
  const Stream stream = Stream::worker();
  const Event event = stream.submit([&] { go.get_future().wait(); });
  bool asked = false;
  const InterruptCheck check([&] {
    if (asked) return;
    asked = true;
    EXPECT_FALSE(event.ready());
    go.set_value();
  });
  event.wait();
  EXPECT_TRUE(asked);
}

TEST(Interrupt, TheInnermostCheckCountsAndOnlyOnItsThread) {
  const InterruptCheck outer(interrupt);
  int looks = 0;
  std::promise<void> go;
  const Stream stream = Stream::worker();
  const Event event = stream.submit([&] {
    EXPECT_NO_THROW(go.get_future().wait());
    Communicator(0, 1, UniqueId::create()).barrier();
  });
  {
    const InterruptCheck inner([&] {
      if (++looks == 3) go.set_value();
    });
    event.wait();
  }
  EXPECT_GE(looks, 3);
  Communicator(0, 1, UniqueId::create()).barrier();  // too short a call to look
}

}  // namespace
}  // namespace tutti
