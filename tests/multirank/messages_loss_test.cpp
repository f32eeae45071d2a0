// Messages that do not match, and recvs from any source for which nothing comes: who is told what.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "multirank/numbers.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class MessagesLoss : public RankTest {};
class ExchangeMismatch : public RankTest {};

// --- What does not match ------------------------------------------------------------------------

/** `run` throws an Error that says all of `parts`. */
template <class Error>
void expect_error(const std::vector<std::string>& parts, const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(ExchangeMismatch, TagsThatDifferAreToldToBoth) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int last = ranks() - 1;
    const std::vector<std::string> parts{
        "rank 0 sends (i64, count 40000, tag 1) to rank " + std::to_string(last),
        "(i64, count 40000, tag 2)"};
    Numbers data(40'000);
    if (comm.global_rank() == 0) {
      expect_error<MismatchError>(parts, [&] { comm.send(in(data), last, 1); });
    } else if (comm.global_rank() == last) {
      expect_error<MismatchError>(parts, [&] { comm.recv(out(data), 0, 2); });
    }
    EXPECT_THROW(comm.barrier(), CommunicationError);
  });
}

TEST_F(ExchangeMismatch, WhatIsLeftOverInAnExchangeIsToldToBoth) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int last = ranks() - 1;
    const std::vector<std::string> parts{"rank 0 sends (i64, count 1, tag 7)", "tag 6"};
    Numbers a(1);
    Numbers b(1);
    if (comm.global_rank() == 0) {
      const std::vector<Message> messages{Message::send(in(a), last, 5),
                                          Message::send(in(b), last, 7)};
      expect_error<MismatchError>(parts, [&] { comm.exchange(messages); });
    } else if (comm.global_rank() == last) {
      const std::vector<Message> messages{Message::recv(out(a), 0, 6), Message::recv(out(b), 0, 5)};
      expect_error<MismatchError>(parts, [&] { comm.exchange(messages); });
    }
    EXPECT_THROW(comm.barrier(), CommunicationError);
  });
}

TEST_F(ExchangeMismatch, OtherCountsAreToldToBothAndNothingIsWritten) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int last = ranks() - 1;
    const std::vector<std::string> parts{"count 7", "count 9"};
    const Numbers mine = numbers(7, 1);
    Numbers got(9, -1);
    if (comm.global_rank() == 0) {
      const std::vector<Message> messages{Message::send(in(mine), last, 5)};
      expect_error<MismatchError>(parts, [&] { comm.exchange(messages); });
    } else if (comm.global_rank() == last) {
      expect_error<MismatchError>(parts, [&] { comm.recv(out(got), kAnySource, 5); });
      EXPECT_EQ(got, Numbers(9, -1));
    }
    EXPECT_THROW(comm.barrier(), CommunicationError);
  });
}

// --- Nothing comes ------------------------------------------------------------------------------

constexpr std::chrono::milliseconds kDeadline = 1s;

/** Receives a number from any source. */
Received receive(Communicator& comm, std::int32_t tag = 0) {
  std::int64_t value = 0;
  Received received;
  comm.recv(View(&value, 1, DType::i64), kAnySource, tag, {}, &received);
  EXPECT_EQ(value, received.source);
  return received;
}

void send_number(Communicator& comm, int destination) {
  const std::int64_t value = comm.global_rank();
  comm.send(ConstView(&value, 1, DType::i64), destination);
}

/** As long as a deadline and a half, without a call. */
void compute() { std::this_thread::sleep_for(kDeadline * 3 / 2); }

TEST_F(MessagesLoss, WhoeverMerelyComputesIsNotToBlame) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks(
      [](Communicator& comm) {
        if (comm.global_rank() != 0) {
          compute();
          try {
            comm.barrier();
            ADD_FAILURE() << "did not throw";
          } catch (const PeerLost& error) {
            EXPECT_EQ(error.ranks(), std::vector<int>{0}) << error.what();
            EXPECT_NE(error.reason().find("from any source"), std::string::npos) << error.what();
          }
          return;
        }
        const auto begin = std::chrono::steady_clock::now();
        try {
          receive(comm, 3);
          ADD_FAILURE() << "did not throw";
        } catch (const PeerLost& error) {
          ADD_FAILURE() << error.what();
        } catch (const CommunicationError& error) {
          const std::string what = error.what();
          EXPECT_NE(what.find("(i64, count 1, tag 3) from any source"), std::string::npos) << what;
          EXPECT_NE(what.find(ranks() == 2 ? "from rank 1" : "from ranks 1, 2"), std::string::npos)
              << what;
        }
        EXPECT_GE(std::chrono::steady_clock::now() - begin, kDeadline);
        EXPECT_THROW(comm.barrier(), CommunicationError);
      },
      short_timeout(kDeadline));
}

class MessagesToItself : public MessagesLoss {
 protected:
  /** Rank 0's `call`, which has one side of a message to itself alone, is told `what`, and nobody
   * is blamed; the others compute after theirs, and lose rank 0 for that reason. */
  void expect_told(const std::string& what, const std::function<void(Communicator&)>& call) {
    const auto act = [&](Communicator& comm) {
      call(comm);
      if (comm.global_rank() != 0) {
        compute();
        comm.barrier();
      }
      ADD_FAILURE() << "did not throw";
    };
    const auto expect = [&](Communicator& comm) {
      try {
        act(comm);
      } catch (const PeerLost& error) {
        EXPECT_NE(comm.global_rank(), 0) << error.what();
        EXPECT_EQ(error.ranks(), std::vector<int>{0}) << error.what();
        EXPECT_NE(error.reason().find(what), std::string::npos) << error.what();
      } catch (const CommunicationError& error) {
        EXPECT_EQ(comm.global_rank(), 0) << error.what();
        EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      }
    };
    on_ranks([](Communicator& comm) { comm.barrier(); });  // some come late from the test before
    on_ranks(expect, short_timeout(kDeadline));
  }
};

TEST_F(MessagesToItself, WhatNoRecvTakesIsShown) {
  expect_told("to send (i64, count 1, tag 0) to itself", [](Communicator& comm) {
    if (comm.global_rank() == 0) send_number(comm, 0);
  });
}

TEST_F(MessagesToItself, WhatNoSendBringsIsShown) {
  expect_told("to receive (i64, count 1, tag 0) from itself", [](Communicator& comm) {
    std::int64_t value = 0;
    if (comm.global_rank() == 0) comm.recv(View(&value, 1, DType::i64), 0);
  });
}

TEST_F(MessagesToItself, WhatIsLeftOfAnExchangeIsShown) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  expect_told("to send (i64, count 1, tag 0) to itself", [](Communicator& comm) {
    const int last = ranks() - 1;
    const std::int64_t value = 0;
    const ConstView number(&value, 1, DType::i64);
    if (comm.global_rank() == 0) {
      comm.exchange(std::vector{Message::send(number, 0), Message::send(number, last)});
    } else if (comm.global_rank() == last) {
      EXPECT_EQ(receive(comm).source, 0);
    }
  });
}

TEST_F(MessagesLoss, AMessageWithAnotherTagIsShown) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks(
      [](Communicator& comm) {
        if (comm.global_rank() == 0) {
          try {
            receive(comm, 3);
            ADD_FAILURE() << "did not throw";
          } catch (const PeerLost& error) {
            ADD_FAILURE() << error.what();
          } catch (const CommunicationError& error) {
            const std::string what = error.what();
            EXPECT_NE(what.find("rank 1 sends (i64, count 1, tag 0)"), std::string::npos) << what;
          }
        } else if (comm.global_rank() == 1) {
          EXPECT_THROW(send_number(comm, 0), PeerLost);
        } else {
          EXPECT_THROW(comm.barrier(), PeerLost);
        }
      },
      short_timeout(kDeadline));
}

TEST_F(MessagesLoss, AllOthersThatLeaveAreNamedAtOnce) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks(
      [](Communicator& comm) {
        comm.barrier();
        if (comm.global_rank() != 0) return;
        std::vector<int> others(static_cast<std::size_t>(ranks() - 1));
        std::iota(others.begin(), others.end(), 1);
        const auto begin = std::chrono::steady_clock::now();
        try {
          receive(comm);
          ADD_FAILURE() << "did not throw";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.ranks(), others) << error.what();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
      },
      short_timeout(30s));
}

TEST_F(MessagesLoss, OneOfSeveralThatLeavesIsNamedAtTheDeadlineIfNobodyElseSends) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  const int leaver = ranks() - 1;
  on_ranks(
      [&](Communicator& comm) {
        const int rank = comm.global_rank();
        if (rank == leaver) return send_number(comm, 1);
        if (rank == 0) {
          EXPECT_EQ(receive(comm).source, 1);  // whether the other has left or not
        } else if (rank == 1) {
          std::int64_t value = 0;
          comm.recv(View(&value, 1, DType::i64), leaver);
          send_number(comm, 0);
        }
        if (rank != 0) compute();
        try {
          rank == 0 ? static_cast<void>(receive(comm)) : static_cast<void>(comm.barrier());
          ADD_FAILURE() << "did not throw";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.ranks(), std::vector<int>{leaver}) << error.what();
        }
      },
      short_timeout(kDeadline));
}

}  // namespace
}  // namespace tutti::test
