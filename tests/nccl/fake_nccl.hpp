// A libnccl that moves nothing: it records the calls and answers as a test tells it to.
#pragma once

#include <nccl.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

/** One for all ranks of the process. */
struct FakeNccl {
  std::mutex mutex;
  /** "rank: function arguments", in the order of the calls. */
  std::vector<std::string> calls;
  int version = 0;
  /** What a function returns, by its name and then its rank (-1: all ranks). Else ncclSuccess. */
  std::map<std::string, std::map<int, ncclResult_t>> answers;
  /** How often a communicator says "in progress" after a call that did; -1: for ever. */
  int patience = 0;
  /** What ncclCommGetAsyncError finds, once no call is in progress. */
  ncclResult_t async = ncclSuccess;
};

/** The one in this library, whoever loaded it. */
extern "C" FakeNccl* fake_nccl();
