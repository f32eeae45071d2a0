// Whether the members of a group ask for the same, and what goes along with the question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/hosts/group/ahead.hpp"
#include "comm/hosts/group/group.hpp"

namespace tutti {

/** The agreements of a group, one after the other. */
class GroupAgreement {
 public:
  /** Bytes of a message that come before what members bring. */
  static constexpr std::int64_t kHeaderBytes = 64;

  /** What members bring to agree(): each `each` bytes, or only one of them. */
  struct Brought {
    static constexpr int kAll = -1;
    std::span<const std::byte> own;
    std::int64_t each = 0;
    int only = kAll;  ///< the position of the only one that brings something

    std::int64_t bytes_of(int position) const {
      return only == kAll || only == position ? each : 0;
    }
  };
  using Merge = HostGroup::Merge;

  /** `group` outlives it. */
  explicit GroupAgreement(const HostGroup& group) : group_(group) {}
  GroupAgreement(const GroupAgreement&) = delete;
  GroupAgreement& operator=(const GroupAgreement&) = delete;
  ~GroupAgreement() = default;

  /**
   * Whether all members came with the same `hash`; all get the same answer. Also a barrier: none
   * returns before all have called. What members bring goes along; if they agree, `merge` fills
   * `out` with the same bytes everywhere. Only what carries() allows, and nothing if something goes
   * `ahead`.
   *
   * Up to HostGroup::kMostCentred members bring all to the first, who answers: two steps, and the
   * fewest messages; or, with a first window behind their headers, which go ahead, tell all others:
   * one step. Two swap what they bring. More disseminate: in step k everybody gets from the one 2^k
   * further what that has by then, so all have all after log2(H) steps (Bruck and others, 1997).
   */
  bool agree(std::uint64_t hash, const Brought& brought, std::span<std::byte> out,
             const Merge& merge, Ahead* ahead = nullptr);
  bool agree(std::uint64_t hash, Ahead* ahead = nullptr) { return agree(hash, {}, {}, {}, ahead); }
  /** By all members, who do not agree on a call: brings what some have sent ahead to an end, and
   * what this one has in `ahead`. */
  void settle(Ahead* ahead = nullptr);
  /** The member, as a rank, who came last to the last agree(), as far as is known. */
  int last() const { return group_.member(last_); }
  /** Whether it saves time that members bring `each` bytes, of which become `out` bytes. */
  bool carries(std::int64_t each, std::int64_t out) const;

 private:
  /** Goes before what a message carries. */
  struct Header {
    std::uint64_t hash;
    std::uint64_t waited;  ///< for `late`, in nanoseconds
    std::int64_t carried;  ///< bytes
    std::int32_t late;
    std::uint32_t agreed;  ///< whether all that the sender has heard of have this hash
    std::int64_t follows;  ///< bytes of the same call, as a message of their own
  };
  static_assert(sizeof(Header) <= kHeaderBytes);

  /** In bytes. */
  std::int64_t most_carried() const;
  /** Messages lie in places of this size. */
  std::int64_t place_bytes() const;
  std::byte* place(int number) const { return places_.get() + number * place_bytes(); }
  Header header_of(int member) const;
  bool ask_centre(Header header, const Brought& brought, std::span<std::byte> out);
  bool answer_all(Header header, const Brought& brought, std::span<std::byte> out,
                  const Merge& merge);
  bool tell_all(Header header, Ahead& ahead);
  void tell_others_of_mismatch(Header header);
  void drop_what_follows(const Header& own, const Ahead* ahead);
  std::int64_t with_header(std::int64_t carried) const;
  bool swap(Header header, const Brought& brought, const Merge& merge);
  bool disseminate(Header header, const Brought& brought, const Merge& merge);

  const HostGroup& group_;
  int last_ = 0;
  std::shared_ptr<std::byte[]> places_;  // made by the first agree()
};

}  // namespace tutti
