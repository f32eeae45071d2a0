// A worker's own copy of what a server has, in GEO mode.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "ps/dense/store.hpp"
#include "ps/modes/batch.hpp"
#include "ps/modes/first_error.hpp"
#include "ps/modes/servers.hpp"
#include "ps/table/merge.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/**
 * For each row and element x, which this worker trains, and o, what it was at the last exchange. An
 * exchange sends d = (x - o) / T and adds it to o; then s comes back, the server's value: x += s -
 * o, o = s. Rows that this worker has not trained since then are not sent, and rows that no other
 * has changed do not come. Not thread-safe, but for calls that change nothing.
 */
class GeoCopy {
 public:
  GeoCopy(Servers& servers, int server, std::uint64_t seed);

  void look_up(int table, const IdShare& share, float* rows) const;
  std::span<const float> dense() const { return dense_.values(); }

  /** x = o = s, of all rows that the server has. */
  void start();
  /** Applies the parameters' rules to x. */
  void train(Batch& batch);
  void send_progress(int workers, std::int64_t round);
  /** Waits for what that has come to: progress that the server has no memory for is this worker's
   * again, and SystemError is thrown. */
  void confirm_progress();
  void receive();
  /** Sends x - o of all rows and elements, which are o then, as if they had come there;
   * confirm_progress() is due. */
  void send_rest(std::int64_t round);
  /** A last send_rest(), which needs no memory for o: what fails does not keep the rest from being
   * sent. */
  void finish(std::int64_t round, FirstError& errors);

 private:
  struct CopiedTable {
    Table x;
    Table o;
    Merger trained;        ///< ids since the last exchange, without rows
    bool pulling = false;  ///< changed rows are asked for, and not taken in
  };
  /** Progress on its way, as if it had come there. */
  struct SentRows {
    int table;
    std::vector<std::int64_t> ids;
    std::vector<float> before;  ///< o
    Asked asked;
  };
  struct Rows {
    std::vector<std::int64_t> ids;
    std::vector<float> values;
  };

  CopiedTable& table(int number) { return tables_[static_cast<std::size_t>(number)]; }
  /** Hands over all rows that others have changed, some at a time. Those that take(rows) throws for
   * come again. */
  template <class Take>
  void pull_changed(int table, const Take& take);
  Rows ask_for_changed(int table, bool again);
  /** Hands over what is left of each row, some rows at a time, and counts none as trained then. */
  template <class Send>
  void send_rest_of_table(int number, const Send& send);
  /** Of which x is o then, not o x. */
  void send_last_rows(int number, std::span<const std::int64_t> ids,
                      const std::vector<float>& progress, std::int64_t round);
  void send_rest_of_dense(std::int64_t round);
  void send_rows(int number, std::vector<std::int64_t> ids, std::vector<float> progress,
                 std::int64_t round);
  /** That progress is this worker's again. */
  void take_back(const SentRows& sent);
  Drafted draft_rows(int table, std::span<const std::int64_t> ids,
                     const std::vector<float>& progress, std::int64_t round) const;
  /** (x - o) / divisor of the dense blocks. */
  std::vector<float> dense_progress(float divisor) const;

  static constexpr std::int64_t kRows = 65536;  // of one message

  Servers& servers_;
  int server_;
  std::vector<CopiedTable> tables_;
  std::deque<SentRows> sent_;
  FirstError refused_;  // of those that have been taken back
  DenseStore dense_;    // x
  std::vector<float> dense_o_;
};

}  // namespace tutti::ps
