// Gathers and exchanges of blocks among the members of a group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/hosts/group/ahead.hpp"
#include "comm/hosts/group/group.hpp"

namespace tutti {

/** Every member's `in`, in the order of members: out is size() times in. `in` may be this member's
 * block of `out`. */
void all_gather(const HostGroup& group, std::span<const std::byte> in, std::span<std::byte> out);
/** The same with blocks of different length, in place: block i of `data` is offsets[i] to
 * offsets[i+1], and this rank's own is filled in. Short blocks of more than HostGroup::kMostDirect
 * members travel by doubling, as in GroupAgreement::agree(): the same bytes in about log2(H)
 * messages. Another `own` block is copied to its place. */
void all_gather_v(const HostGroup& group, std::byte* data, std::span<const std::int64_t> offsets,
                  const std::byte* own = nullptr);
/** Whether that goes ahead of an agreement if all blocks have `bytes` bytes together. */
bool gathers_ahead(const HostGroup& group, std::int64_t bytes);
/** Then: nothing is written to `data` before `agree` has returned. */
void gather_ahead(const HostGroup& group, std::byte* data, std::span<const std::int64_t> offsets,
                  const std::byte* own, const Agree& agree);
/** Block j of `in` goes to member j, and member i's block for this one to block i of `out`; this
 * one's own is copied. Offsets as above; `out` fits what the members send. */
void all_to_all_v(const HostGroup& group, std::byte* in, std::span<const std::int64_t> in_offsets,
                  std::byte* out, std::span<const std::int64_t> out_offsets);

}  // namespace tutti
