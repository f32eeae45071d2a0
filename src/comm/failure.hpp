// Why a communicator is of no more use, in the plain bytes in which ranks tell each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/error.hpp"

namespace tutti {

/** What PeerLost says. */
struct Loss {
  std::vector<int> ranks;
  std::string reason;
};

/** Whether the processes of all lost ranks are known to have ended: they are sent nothing more. */
enum class Ended : std::uint32_t { unknown, yes };

/** Of such ranks. */
class ProcessesEnded final : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

/** What is known of those that `error` names. */
Ended ended_of(const PeerLost& error);

/** Who of a host sees to it that the news of a failure get out: whoever has found it, and the first
 * two others that hear of it, should that one have been stopped since. */
enum class Herald : std::uint8_t { finder, stand_in, nobody };
inline constexpr int kStandIns = 2;

/** Who has seen a mismatch: all ranks, or one or two of them, of whom the others have to hear. */
enum class Witnesses : std::uint32_t { all, two };

/** A mismatch that another rank of this host has seen, and not all. */
class NeighboursMismatch final : public MismatchError {
 public:
  using MismatchError::MismatchError;
};

/**
 * A PeerLost's ranks and reason, or a MismatchError's text: in shared memory for the ranks of a
 * host, in messages for other hosts. There is room for kMostRanks ranks and kMostText bytes; what
 * goes beyond is left out, and the text says so. Zeros are an empty one.
 */
struct FailureReport {
  enum class Kind : std::uint32_t { peer_lost, mismatch };
  static constexpr std::size_t kMostRanks = 256;
  static constexpr std::size_t kMostText = 2560;  ///< with the ranks below Open MPI's eager limit

  Kind kind;
  Ended ended;          ///< of PeerLost
  Witnesses witnesses;  ///< of MismatchError, as the ranks of a host tell each other
  std::int32_t rank_count;
  std::int32_t text_length;
  std::array<std::int32_t, kMostRanks> ranks;  ///< of PeerLost, as the user knows them
  std::array<char, kMostText> text;            ///< UTF-8

  void set_lost(std::span<const int> lost, std::string_view reason,
                Ended are_ended = Ended::unknown) noexcept;
  void set_mismatch(std::string_view message, Witnesses seen_by = Witnesses::all) noexcept;
  std::span<const std::int32_t> rank_list() const {
    return std::span(ranks).first(static_cast<std::size_t>(rank_count));
  }
  std::string_view text_value() const {
    return {text.data(), static_cast<std::size_t>(text_length)};
  }
  /** Throws PeerLost, which may be a ProcessesEnded, or MismatchError, which may be a
   * NeighboursMismatch. */
  [[noreturn]] void raise() const;

 private:
  /** Cuts `value` between two characters where it is too long, and adds `remark` in any case. */
  void set_text(std::string_view value, std::string_view remark) noexcept;
};

}  // namespace tutti
