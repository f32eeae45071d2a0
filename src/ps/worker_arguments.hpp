// Refuses arguments of a worker's calls by name and value, before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/ps/dense.hpp"
#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** Each throws InvalidArgument that begins with the name of the call. */
class WorkerArguments {
 public:
  WorkerArguments(const std::vector<TableSpec>& tables, const std::vector<DenseParameter>& dense);

  int table(std::string_view name) const;
  int parameter(std::string_view name) const;

  void check_ids(const char* call, int table, std::span<const std::int64_t> ids) const;
  /** A row for each id. */
  void check_rows(const char* call, const char* argument, int table, std::size_t ids,
                  std::size_t floats) const;
  /** One for each id, finite and not negative, or none. */
  void check_counts(const char* call, const char* argument, int table, std::size_t ids,
                    std::span<const float> counts) const;
  void check_dense(const char* call, const char* argument, int parameter, std::size_t floats) const;
  void check_parameter(const char* call, int parameter) const;
  void check_shared(const char* call, int parameter) const;

 private:
  struct Parameter {
    std::string name;
    std::int64_t elements;
    bool shared;
  };
  const Parameter& checked_parameter(const char* call, int parameter) const;
  const TableSpec& checked_table(const char* call, int table) const;

  std::vector<TableSpec> tables_;
  std::vector<Parameter> parameters_;
};

}  // namespace tutti::ps
