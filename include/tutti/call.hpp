// A call of a communicator as a value: what is asked for, by whom it is run and shown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/dtype.hpp"
#include "tutti/message.hpp"
#include "tutti/reduce.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

/** What a communicator can be asked for. */
enum class Operation : std::uint8_t {
  all_reduce,
  reduce,
  scan,
  exscan,
  broadcast,
  gather,
  gather_v,
  scatter,
  scatter_v,
  all_gather,
  all_gather_v,
  reduce_scatter,
  reduce_scatter_v,
  all_to_all,
  all_to_all_v,
  sparse_all_reduce,
  barrier,
  send,
  recv,
  exchange,
  allocate,
  split,
  group,
};

inline constexpr std::size_t kOperationCount = 23;

/** As the operation's function is called: "all_reduce". */
constexpr std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, kOperationCount> kNames{
      "all_reduce",       "reduce",     "scan",         "exscan",
      "broadcast",        "gather",     "gather_v",     "scatter",
      "scatter_v",        "all_gather", "all_gather_v", "reduce_scatter",
      "reduce_scatter_v", "all_to_all", "all_to_all_v", "sparse_all_reduce",
      "barrier",          "send",       "recv",         "exchange",
      "allocate",         "split",      "group"};
  return kNames[static_cast<std::size_t>(operation)];
}

/** Whether it combines contributions element by element. */
constexpr bool reduces(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::scan:
    case Operation::exscan:
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
    case Operation::sparse_all_reduce:
      return true;
    default:
      return false;
  }
}

/** Whether it is about elements of some type. */
constexpr bool has_elements(Operation operation) {
  return operation != Operation::barrier && operation != Operation::split &&
         operation != Operation::group;
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
  /** Elements, as the operation's documentation counts: of gather and all_gather those of one
   * contribution, of scatter and reduce_scatter those of one result, of all_to_all those for one
   * rank; where `counts` says the rest, all, but none of all_to_all_v, where each rank has its own.
   * Of allocate and exchange bytes. */
  std::int64_t count = 0;
  ConstView in;
  View out;
  Reduce reduction;
  int root = -1;                        ///< of reduce, broadcast, gather and scatter
  int peer = -1;                        ///< the destination of a send, the source of a recv
  std::int32_t tag = 0;                 ///< of a send or recv
  Received* received = nullptr;         ///< of a recv: written if not null
  std::span<const Message> messages{};  ///< of exchange
  /** By rank: each one's elements in gather_v, scatter_v, all_gather_v and reduce_scatter_v; what
   * goes to it in all_to_all_v. */
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> arriving;  ///< of all_to_all_v: what comes from each rank
  SparseView entries;                      ///< of sparse_all_reduce, in place of `in`
  SparseStats* stats = nullptr;            ///< of sparse_all_reduce: written if not null
  Device device;                           ///< where its memory is

  static Call all_reduce(const ConstView& in, const View& out, const Reduce& reduction);
  static Call reduce(ConstView in, View out, Reduce reduction, int root);
  static Call scan(ConstView in, View out, Reduce reduction);
  static Call exscan(ConstView in, View out, Reduce reduction);
  static Call broadcast(ConstView in, View out, int root);
  static Call gather(ConstView in, View out, int root);
  static Call gather_v(ConstView in, View out, std::span<const std::int64_t> counts, int root);
  static Call scatter(ConstView in, View out, int root);
  static Call scatter_v(ConstView in, View out, std::span<const std::int64_t> counts, int root);
  static Call all_gather(ConstView in, View out);
  static Call all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts);
  static Call reduce_scatter(ConstView in, View out, Reduce reduction);
  static Call reduce_scatter_v(ConstView in, View out, std::span<const std::int64_t> counts,
                               Reduce reduction);
  static Call all_to_all(ConstView in, View out, int ranks);
  static Call all_to_all_v(ConstView in, std::span<const std::int64_t> leaving, View out,
                           std::span<const std::int64_t> arriving);
  static Call sparse_all_reduce(const SparseView& entries, View out, Reduce reduction,
                                SparseStats* stats = nullptr);
  static Call barrier(Device device = {});
  static Call send(ConstView in, int destination, std::int32_t tag = 0);
  static Call recv(View out, int source, std::int32_t tag = 0, Received* received = nullptr);
  static Call exchange(std::span<const Message> messages);
  static Call allocate(std::int64_t bytes, Device device = {});
  static Call split();
  static Call group();

  /** Whether it is about messages between two ranks, not all of them. */
  bool is_message() const {
    return operation == Operation::send || operation == Operation::recv ||
           operation == Operation::exchange;
  }
  /** "all_reduce(f32, count 10, sum)", as in a MismatchError. */
  std::string describe() const;

 private:
  /** Not defaulted: one that is takes 5 ns, for it clears the whole with one slow instruction. */
  Call() {}  // NOLINT(modernize-use-equals-default)
};

}  // namespace tutti
