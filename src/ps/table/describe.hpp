// Tables and rules in words, for what workers and servers compare and for errors.
#pragma once

#include <string>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** "adam: lr 0.001, beta1 0.9, beta2 0.999, eps 1e-08". Rules with other numbers have other texts.
 */
std::string describe(const Rule& rule);
/** "uniform: low -0.01, high 0.01". */
std::string describe(const Initial& initial);

/** All fields but the name, on one line. */
std::string describe(const TableSpec& spec);

}  // namespace tutti::ps
