// What ranks of a trial ask for, what they bring, and the sums of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/signature.hpp"
#include "simulation/trial.hpp"

namespace tutti::test::simulated {

/** What `from` has for `to` in an exchange, byte by byte. */
std::byte byte_of(std::size_t number, int from, int to, std::int64_t i);
/** Of a block that goes from one to another; some are empty. */
std::int64_t length_of(const Step& step, int from, int to);

bool goes_one_way(StepKind kind);

/** What a rank asks for in a step, as its transport would say it. */
Signature signature_of(const Step& step, std::int64_t count, int root);

/** What rank `from` brings to its `call`th collective: other numbers than to those beside it. */
std::vector<std::int64_t> numbers_of(std::uint64_t call, int from, std::int64_t count);
/** What `ranks` ranks bring together. */
std::vector<std::int64_t> sums_of(std::uint64_t call, int ranks, std::int64_t count);
/** Adds up numbers to `sums`, which may be one of the parts, and outlives it. */
HostGroup::Merge adding_to(std::vector<std::int64_t>& sums);
/** Whether all agree on `hash`. Members bring `count` numbers each to their `call`th collective, or
 * as many as go along, and have the sums in their place then; all that they brought if they do not
 * agree. Throws std::logic_error if it is anything else. */
bool agree_on_sums(const HostGroup& group, GroupAgreement& agreement, std::uint64_t hash,
                   std::uint64_t call, std::int64_t count);

}  // namespace tutti::test::simulated
