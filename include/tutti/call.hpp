// A call of a communicator as a value: what is asked for, by whom it is run and shown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/dtype.hpp"
#include "tutti/reduce.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

/** What a communicator can be asked for. */
enum class Operation : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_v,
  reduce_scatter,
  all_to_all,
  sparse_all_reduce,
  barrier,
  send,
  recv,
  allocate,
  split,
};

inline constexpr std::size_t kOperationCount = 13;

/** As the operation's function is called: "all_reduce". */
constexpr std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, kOperationCount> kNames{
      "all_reduce",   "reduce",         "broadcast",  "all_gather",
      "all_gather_v", "reduce_scatter", "all_to_all", "sparse_all_reduce",
      "barrier",      "send",           "recv",       "allocate",
      "split"};
  return kNames[static_cast<std::size_t>(operation)];
}

/**
 * One call. Communicator makes it after it has checked the arguments, and whoever runs, compares,
 * records or prints the call reads this value: so an operation's arguments are gathered in one
 * place. What an operation has no use for keeps its default. Made by the functions below, which are
 * named like the operations; views and spans are of memory that outlives the call.
 */
struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  /** Elements, as the operation's documentation counts: of all_gather those of one contribution, of
   * reduce_scatter those of one result, of all_to_all those for one rank, of all_gather_v all. Of
   * allocate bytes. */
  std::int64_t count = 0;
  ConstView in;
  View out;
  Reduce reduction;
  int root = -1;                         ///< of reduce and broadcast
  int peer = -1;                         ///< the destination of a send, the source of a recv
  std::span<const std::int64_t> counts;  ///< of all_gather_v
  SparseView entries;                    ///< of sparse_all_reduce, in place of `in`
  SparseStats* stats = nullptr;          ///< of sparse_all_reduce: written if not null
  Device device;                         ///< where its memory is

  static Call all_reduce(ConstView in, View out, Reduce reduction);
  static Call reduce(ConstView in, View out, Reduce reduction, int root);
  static Call broadcast(ConstView in, View out, int root);
  static Call all_gather(ConstView in, View out);
  static Call all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts);
  static Call reduce_scatter(ConstView in, View out, Reduce reduction);
  static Call all_to_all(ConstView in, View out, int ranks);
  static Call sparse_all_reduce(const SparseView& entries, View out, Reduce reduction,
                                SparseStats* stats = nullptr);
  static Call barrier(Device device = {});
  static Call send(ConstView in, int destination);
  static Call recv(View out, int source);
  static Call allocate(std::int64_t bytes, Device device = {});
  static Call split();

  /** "all_reduce(f32, count 10, sum)", as in a MismatchError. */
  std::string describe() const;
};

}  // namespace tutti
