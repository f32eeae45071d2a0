// What ps_bench measures, and one who does it: tutti, another library, or what memory allows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::bench {

/** A table with rows 0 to rows - 1, of which batches are looked up and pushed. */
struct PsLoad {
  std::int64_t rows = 8 << 20;
  std::int64_t dim = 16;
  std::int64_t batch = 8192;
  double seconds = 0.5;  ///< for each turn
};

/** The dense parameters' elements. */
inline constexpr std::int64_t kDenseElements[] = {1 << 20, 16 << 20};

/** lookup, push_sgd, push_adagrad, push_adam, dense_push_4M, dense_pull_4M, dense_push_64M,
 * dense_pull_64M, push_ack, push_ack_asleep. */
std::span<const std::string_view> ps_tasks();
/** How many rows (of dim elements) a call of a task moves. */
std::int64_t rows_of(std::string_view task, const PsLoad& load);

struct PsTurn {
  double us = 0;         ///< a call
  bool checked = false;  ///< the values were right
};

class PsSide {
 public:
  virtual ~PsSide() = default;
  /** Nothing if it cannot do that. */
  virtual std::optional<PsTurn> measure(std::string_view task) = 0;
};

/** Their processes are those that ps_bench has started for this side. */
std::unique_ptr<PsSide> make_own_side(const PsLoad& load);
/** What the same memory accesses cost without an index, messages, and a second process. */
std::unique_ptr<PsSide> make_limit_side(const PsLoad& load);
/** One-sided communication with a window of rank 1, rows numbered instead of looked up. Rank 1
 * stays in here. */
std::unique_ptr<PsSide> make_mpi_side(const PsLoad& load);
/** Throws BackendUnavailable if this program was built without it. */
std::unique_ptr<PsSide> make_pslite_side(const PsLoad& load);

/**
 * Batches of distinct rows all over the table. Rows have ids of 64 bits. Before anything was pushed
 * element j of row i is first_value(i, j), and every push adds 1 to all elements of its rows.
 */
class PsBatches {
 public:
  explicit PsBatches(const PsLoad& load, bool sorted = false);

  std::int64_t count() const { return static_cast<std::int64_t>(pushes_.size()); }
  std::span<const std::int64_t> rows(std::int64_t number) const;
  std::span<const std::int64_t> ids(std::int64_t number) const;
  static std::int64_t id_of(std::int64_t row);
  static float first_value(std::int64_t row, std::int64_t column) {
    return static_cast<float>(row % 1024 + column);
  }

  /** The next in turn. */
  std::int64_t next() { return next_++ % count(); }
  /** So that expected values are known. */
  void pushed(std::int64_t number) { ++pushes_[static_cast<std::size_t>(number)]; }
  std::int64_t pushes(std::int64_t number) const {
    return pushes_[static_cast<std::size_t>(number)];
  }
  /** Whether `values` are those of batch `number`. */
  bool holds(std::int64_t number, std::span<const float> values) const;

 private:
  PsLoad load_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> pushes_;
  std::int64_t next_ = 0;
};

/** The mean time of a call in microseconds: as many as fit into `seconds`, and `finish` after them.
 */
double time_calls(double seconds, const std::function<void()>& call,
                  const std::function<void()>& finish = {});
/** The median time of single calls in microseconds, each after `idle_us` of sleep. */
double time_each(int calls, int idle_us, const std::function<void()>& call);

}  // namespace tutti::bench
