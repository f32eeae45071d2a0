// A table as a window of MPI's one-sided communication: rows have numbers, so there is no index.
#include <mpi.h>
#include <unistd.h>

#include <vector>

#include "ps/side.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {
namespace {

/** Elements of rows at many places, as one argument of MPI_Get. */
class RowsType {
 public:
  RowsType(std::span<const std::int64_t> rows, std::int64_t dim) {
    std::vector<MPI_Aint> places;
    for (const std::int64_t row : rows) places.push_back(row * dim * 4);
    MPI_Type_create_hindexed_block(static_cast<int>(rows.size()), static_cast<int>(dim),
                                   places.data(), MPI_FLOAT, &type_);
    MPI_Type_commit(&type_);
  }
  RowsType(const RowsType&) = delete;
  RowsType& operator=(const RowsType&) = delete;
  ~RowsType() { MPI_Type_free(&type_); }

  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

class MpiWindowSide final : public PsSide {
 public:
  explicit MpiWindowSide(const PsLoad& load) : load_(load), batches_(load) {
    MPI_Init(nullptr, nullptr);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    table_ = make_window(rank == 1 ? load.rows * load.dim : 0, &rows_);
    dense_ = make_window(rank == 1 ? kDenseElements[1] : 0, &parameters_);
    if (rank == 1) {
      for (std::int64_t row = 0; row < load.rows; ++row) {
        for (std::int64_t j = 0; j < load.dim; ++j) {
          rows_[row * load.dim + j] = PsBatches::first_value(row, j);
        }
      }
      std::fill_n(parameters_, kDenseElements[1], 0.0F);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
      MPI_Win_lock_all(0, table_);
      MPI_Win_lock_all(0, dense_);
    }
    serves_ = rank == 1;
    if (serves_) leave();
  }
  MpiWindowSide(const MpiWindowSide&) = delete;
  MpiWindowSide& operator=(const MpiWindowSide&) = delete;
  ~MpiWindowSide() override {
    if (serves_) return;
    MPI_Win_unlock_all(dense_);
    MPI_Win_unlock_all(table_);
    leave();
  }

  std::optional<PsTurn> measure(std::string_view task) override {
    if (serves_) return std::nullopt;
    if (task == "lookup") return lookup();
    if (task == "push_sgd") return push();
    if (task.starts_with("dense")) return dense(task);
    return task == "push_ack" ? std::optional(ack()) : std::nullopt;
  }

 private:
  static MPI_Win make_window(std::int64_t elements, float** memory) {
    MPI_Win window = MPI_WIN_NULL;
    MPI_Win_allocate(elements * 4, 1, MPI_INFO_NULL, MPI_COMM_WORLD, memory, &window);
    return window;
  }

  /** Meets the other rank, and lets the core be until it comes: other sides have their turns. */
  void leave() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int there = 0; there == 0; ::usleep(1000)) {
      MPI_Test(&request, &there, MPI_STATUS_IGNORE);
    }
    MPI_Win_free(&dense_);
    MPI_Win_free(&table_);
    MPI_Finalize();
  }

  void get(std::int64_t number, std::vector<float>& out) const {
    const RowsType rows(batches_.rows(number), load_.dim);
    MPI_Get(out.data(), static_cast<int>(out.size()), MPI_FLOAT, 1, 0, 1, rows.get(), table_);
    MPI_Win_flush(1, table_);
  }

  PsTurn lookup() {
    std::vector<float> out(static_cast<std::size_t>(load_.batch * load_.dim));
    PsTurn turn;
    turn.us = time_calls(load_.seconds, [&] { get(batches_.next(), out); });
    const std::int64_t last = batches_.next();
    get(last, out);
    turn.checked = batches_.holds(last, out);
    return turn;
  }

  PsTurn push() {
    const std::vector<float> ones(static_cast<std::size_t>(load_.batch * load_.dim), 1.0F);
    std::int64_t last = 0;
    PsTurn turn;
    turn.us = time_calls(load_.seconds, [&] {
      last = batches_.next();
      const RowsType rows(batches_.rows(last), load_.dim);
      MPI_Accumulate(ones.data(), static_cast<int>(ones.size()), MPI_FLOAT, 1, 0, 1, rows.get(),
                     MPI_SUM, table_);
      MPI_Win_flush(1, table_);
      batches_.pushed(last);
    });
    std::vector<float> out(ones.size());
    get(last, out);
    turn.checked = batches_.holds(last, out);
    return turn;
  }

  PsTurn dense(std::string_view task) {
    const auto elements = static_cast<int>(rows_of(task, load_) * load_.dim);
    const bool pulls = task.starts_with("dense_pull");
    std::vector<float> local(static_cast<std::size_t>(elements), 1.0F);
    std::vector<float> before(2);
    const auto ends = [&](std::vector<float>& values) {
      MPI_Get(&values[0], 1, MPI_FLOAT, 1, 0, 1, MPI_FLOAT, dense_);
      MPI_Get(&values[1], 1, MPI_FLOAT, 1, std::int64_t{4} * (elements - 1), 1, MPI_FLOAT, dense_);
      MPI_Win_flush(1, dense_);
    };
    ends(before);
    int calls = 0;
    PsTurn turn;
    turn.us = time_calls(load_.seconds, [&] {
      if (pulls) {
        MPI_Get(local.data(), elements, MPI_FLOAT, 1, 0, elements, MPI_FLOAT, dense_);
      } else {
        MPI_Accumulate(local.data(), elements, MPI_FLOAT, 1, 0, elements, MPI_FLOAT, MPI_SUM,
                       dense_);
      }
      MPI_Win_flush(1, dense_);
      ++calls;
    });
    std::vector<float> after(2);
    ends(after);
    if (pulls) {
      turn.checked = local.front() == before[0] && local.back() == before[1];
    } else {
      const auto more = static_cast<float>(calls);
      turn.checked = after[0] == before[0] + more && after[1] == before[1] + more;
    }
    return turn;
  }

  PsTurn ack() {
    const std::vector<float> nothing(static_cast<std::size_t>(load_.dim));
    const auto dim = static_cast<int>(load_.dim);
    const double us = time_each(2000, 0, [&] {
      MPI_Accumulate(nothing.data(), dim, MPI_FLOAT, 1, 0, dim, MPI_FLOAT, MPI_SUM, table_);
      MPI_Win_flush(1, table_);
    });
    return {us, true};
  }

  PsLoad load_;
  PsBatches batches_;
  bool serves_ = false;
  float* rows_ = nullptr;
  float* parameters_ = nullptr;
  MPI_Win table_ = MPI_WIN_NULL;
  MPI_Win dense_ = MPI_WIN_NULL;
};

}  // namespace

std::unique_ptr<PsSide> make_mpi_side(const PsLoad& load) {
  return std::make_unique<MpiWindowSide>(load);
}

}  // namespace tutti::bench
