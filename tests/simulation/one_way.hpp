// What ranks of a trial ask for where a call may go one way, and what they bring to a reduction.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/signature.hpp"
#include "simulation/trial.hpp"

namespace tutti::test::simulated {

bool goes_one_way(StepKind kind);

/** What a rank asks for in a step, as its transport would say it. */
Signature signature_of(const Step& step, std::int64_t count, int root);

/** What rank `from` brings to its `call`th collective: other numbers than to those beside it. */
std::vector<std::int64_t> numbers_of(std::uint64_t call, int from, std::int64_t count);
/** What `ranks` ranks bring together. */
std::vector<std::int64_t> sums_of(std::uint64_t call, int ranks, std::int64_t count);

}  // namespace tutti::test::simulated
