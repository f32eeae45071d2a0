// Refuses arguments of a worker's calls.
#include "ps/worker_arguments.hpp"

#include <algorithm>
#include <cmath>

#include "base/refuse.hpp"
#include "ps/dense/layout.hpp"

namespace tutti::ps {
namespace {

template <class Named>
int number_of(const char* what, const std::vector<Named>& all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &Named::name);
  if (found != all.end()) return static_cast<int>(found - all.begin());
  std::string names;
  for (const Named& one : all) names += (names.empty() ? "" : ", ") + one.name;
  refuse("there is no ", what, " ", name, names.empty() ? ": there are none" : "; there are ",
         names);
}

}  // namespace

WorkerArguments::WorkerArguments(const std::vector<TableSpec>& tables,
                                 const std::vector<DenseParameter>& dense)
    : tables_(tables) {
  for (const DenseParameter& parameter : dense)
    parameters_.push_back({parameter.name, element_count(parameter), parameter.shared});
}

int WorkerArguments::table(std::string_view name) const {
  return number_of("table", tables_, name);
}

int WorkerArguments::parameter(std::string_view name) const {
  return number_of("parameter", parameters_, name);
}

const TableSpec& WorkerArguments::checked_table(const char* call, int table) const {
  if (table < 0 || table >= std::ssize(tables_))
    refuse(call, ": table is ", table, ", but there are ", tables_.size());
  return tables_[static_cast<std::size_t>(table)];
}

void WorkerArguments::check_ids(const char* call, int table,
                                std::span<const std::int64_t> ids) const {
  const TableSpec& spec = checked_table(call, table);
  if (spec.dict_size == 0) return;
  const auto is_outside = [&](std::int64_t id) {
    return (id < 0 || id >= spec.dict_size) && id != spec.padding_idx;
  };
  const auto found = std::ranges::find_if(ids, is_outside);
  if (found == ids.end()) return;
  refuse(call, ": ids[", found - ids.begin(), "] is ", *found, ", but table ", spec.name,
         " has dict_size ", spec.dict_size);
}

void WorkerArguments::check_rows(const char* call, const char* argument, int table, std::size_t ids,
                                 std::size_t floats) const {
  const TableSpec& spec = checked_table(call, table);
  const auto dim = static_cast<std::size_t>(spec.dim);
  if (floats % dim == 0 && floats / dim == ids) return;
  refuse(call, ": ", argument, " has ", floats, " elements, but ", ids, " rows of table ",
         spec.name, " have ", dim, " each");
}

void WorkerArguments::check_counts(const char* call, const char* argument, int table,
                                   std::size_t ids, std::span<const float> counts) const {
  if (!counts.empty() && counts.size() != ids) {
    refuse(call, ": ", argument, " has ", counts.size(), " elements, but there are ", ids,
           " ids for table ", checked_table(call, table).name);
  }
  const auto found = std::ranges::find_if_not(
      counts, [](float count) { return count >= 0 && std::isfinite(count); });
  if (found == counts.end()) return;
  refuse(call, ": ", argument, "[", found - counts.begin(), "] is ", *found,
         ", not a number that is 0 or more");
}

const WorkerArguments::Parameter& WorkerArguments::checked_parameter(const char* call,
                                                                     int parameter) const {
  if (parameter < 0 || parameter >= std::ssize(parameters_))
    refuse(call, ": parameter is ", parameter, ", but there are ", parameters_.size());
  return parameters_[static_cast<std::size_t>(parameter)];
}

void WorkerArguments::check_parameter(const char* call, int parameter) const {
  checked_parameter(call, parameter);
}

void WorkerArguments::check_shared(const char* call, int parameter) const {
  const Parameter& own = checked_parameter(call, parameter);
  if (!own.shared)
    refuse(call, ": DenseParameter::shared of ", own.name, " is false, but must be true");
}

void WorkerArguments::check_dense(const char* call, const char* argument, int parameter,
                                  std::size_t floats) const {
  const Parameter& own = checked_parameter(call, parameter);
  if (static_cast<std::int64_t>(floats) == own.elements) return;
  refuse(call, ": ", argument, " has ", floats, " elements, but parameter ", own.name, " has ",
         own.elements);
}

}  // namespace tutti::ps
