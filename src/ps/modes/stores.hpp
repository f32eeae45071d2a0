// What a server has, and what single requests do with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ps/dense/store.hpp"
#include "ps/link/links.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/** What a request came to. */
struct Answer {
  Outcome outcome = Outcome::done;
  int number = -1;
  std::vector<std::byte> payload{};

  static Answer with_text(Outcome outcome, std::string_view text, int number = -1);
};

/** The ids and rows that a push brings. */
struct RowsOfRequest {
  std::span<const std::int64_t> ids;
  const float* rows = nullptr;
  std::span<const float> shows;
  std::span<const float> clicks;
};

/** What a request does not say, or says of what there is not, is InvalidArgument. */
class Stores {
 public:
  Stores(std::vector<Table> tables, std::unique_ptr<DenseStore> dense);

  std::span<Table> tables() { return tables_; }
  std::span<const Table> tables() const { return tables_; }
  DenseStore& dense() { return *dense_; }
  const DenseStore& dense() const { return *dense_; }

  RowsOfRequest rows(const RequestHeader& header, std::span<const std::byte> payload) const;
  /** Of all blocks. */
  std::span<const float> elements(const RequestHeader& header,
                                  std::span<const std::byte> payload) const;
  /** Of push_dense. */
  std::vector<BlockGradient> gradients(const RequestHeader& header,
                                       std::span<const std::byte> payload) const;

  /** push_rows and push_dense by their rules, add_rows and add_dense as they are, set_dense. */
  void apply(const Request& request, float scale);
  void update(int table, const RowUpdates& updates);
  /** Steps of the server, by which rows grow old. */
  void step(std::int64_t count);

  Answer look_up(const Request& request) const;
  Answer pull_dense(const Request& request) const;

  std::int64_t rows_updated() const { return rows_updated_; }

 private:
  const Table& table(const RequestHeader& header) const;

  std::vector<Table> tables_;
  std::unique_ptr<DenseStore> dense_;
  std::int64_t rows_updated_ = 0;
};

}  // namespace tutti::ps
