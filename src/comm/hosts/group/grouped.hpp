// Long messages between many hosts: inside groups of them, and between the groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/hosts/group/around.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/pipeline.hpp"
#include "comm/hosts/group/segments.hpp"
#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"

namespace tutti {

/**
 * More than HostGroup::kMostDirect members stand in groups (grid.hpp) for an all_reduce, a reduce
 * or a broadcast that does not go whole, so that messages stay long, and those few whom one talks
 * to. A share of the data has a holder in each group, which adds the contributions of its group in
 * the order of the members; the holders of a share add up these sums, each a cell of it, in the
 * order of the groups. Results go back the same way: as many bytes a link as by direct exchange,
 * and one rounding, as sums of 16-bit types travel as floats between groups. Source: the 2D-Torus
 * all-reduce of Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash",
 * 2018; here members of a group, and holders of a share, exchange directly and not in rings.
 *
 * In place, for member `root` or for all; the data are cut into grouped_segments().
 */
void reduce_grouped(const HostGroup& hosts, std::byte* data, DType dtype,
                    const cpu::Combine& combine, std::optional<int> root,
                    const SegmentCalls& calls);
/** Of `bytes` bytes between so many hosts; whatever the dtype. */
Segments grouped_segments(std::int64_t bytes, int hosts);
/** Windows under way: more messages than Wire::kUnderWay. */
inline constexpr std::int64_t kGroupedUnderWay = 4;
/** So many have been posted after the first by the time at which its results are there. */
inline constexpr std::int64_t kPostedBehindGrouped = posted_after(4, kGroupedUnderWay);

/** From member `root` to all, in place. */
void broadcast_grouped(const HostGroup& hosts, int root, std::byte* data, std::int64_t bytes);

}  // namespace tutti
