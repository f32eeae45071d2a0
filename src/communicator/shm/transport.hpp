// The transport among the ranks of one host: shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "communicator/cpu/kernels.hpp"
#include "communicator/shm/host.hpp"
#include "communicator/shm/symmetric.hpp"
#include "tutti/transport.hpp"

namespace tutti::shm {

/**
 * Collectives through shared memory. Whatever the way, element i of a reduction is combined in the
 * order of the ranks, so all ways give the same bits:
 *
 * - one shot, up to 32 KiB: every rank copies its input into its staging memory, arrives, and takes
 *   what it needs from everybody's staging memory. One synchronisation.
 * - zero-copy, if all ranks pass memory of one symmetric allocation: after arriving, ranks read the
 *   others' inputs, and in all_reduce write the others' outputs, in place. Two synchronisations.
 * - staged, otherwise: pieces of 256 KiB go through the staging memory, which is double-buffered.
 *
 * Staging memory is used again only after a later synchronisation has shown that all ranks are
 * done with it; so the first two ways need none at their end for its sake.
 */
class ShmTransport final : public Transport {
 public:
  /** Meets the other holders of `id`. `names` are the ranks as the user knows them: for a whole
   * communicator 0, 1, ... See meet() for the errors. */
  ShmTransport(const UniqueId& id, int rank, std::vector<int> names,
               std::chrono::milliseconds timeout, std::optional<Party> party = {});

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.rank(); }
  int local_size() const override { return host_.size(); }
  std::string describe() const override;

  void all_reduce(ConstView in, View out, Reduce reduce) override;
  void reduce(ConstView in, View out, Reduce reduce, int root) override;
  void broadcast(ConstView in, View out, int root) override;
  void all_gather(ConstView in, View out) override;
  void all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts) override;
  void reduce_scatter(ConstView in, View out, Reduce reduce) override;
  void all_to_all(ConstView in, View out) override;
  SparseStats sparse_all_reduce(const SparseView& in, View out, Reduce reduce) override;
  void barrier() override;
  void send(ConstView in, int destination) override;
  void recv(View out, int source) override;
  Buffer allocate(std::int64_t bytes) override;
  std::unique_ptr<Transport> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override;

  // For a transport that joins several hosts.

  Host& host() { return host_; }
  /** reduce() with a combination that is not this host's alone. */
  void reduce(ConstView in, View out, const cpu::Combine& combine, int root);
  /** Arrives with `signature` and waits for all ranks; whether they all came with the same. */
  bool compare(const Signature& signature);
  /** What the ranks came with to the last compare(), named as the user knows them. */
  std::vector<RankSignature> compared() const;

 private:
  /** How the ranks can reach each other's arguments in one collective. */
  struct Access {
    bool small = false;         ///< inputs are in the small staging memory
    bool direct_in = false;     ///< inputs can be read in place
    bool direct_out = false;    ///< outputs can be written in place
    bool any_in_place = false;  ///< some rank's output overlaps its input
  };

  /** Arrives with a call, waits for all ranks, compares. Throws MismatchError. `small`: stage
   * `in` before arriving. */
  Access begin(Signature signature, ConstView in, View out, bool small);
  /** begin() of a call without buffers. */
  void begin_checked(const Signature& signature) { begin(signature, {}, {}, false); }
  void arrive(const Request& request);
  bool requests_match() const;

  const Request& request_of(int peer) const;
  /** Where the input, or the output, of `peer` begins, in a direct access. */
  const std::byte* input_of(int peer, ConstView own) const;
  std::byte* output_of(int peer, View own) const;
  /** The start of everybody's input, moved by `offset` bytes: in place, or small staging memory. */
  std::vector<const void*> inputs(const Access& access, ConstView own, std::int64_t offset) const;
  /** The start of everybody's piece of staging memory, moved by `offset` bytes; this rank's own is
   * taken from `own`. */
  std::vector<const void*> pieces(std::size_t parity, std::int64_t offset, const void* own) const;

  void reduce_to(const Signature& signature, ConstView in, View out, const cpu::Combine& combine);
  void staged_all_reduce(ConstView in, View out, const cpu::Combine& combine);
  void gather(Signature signature, ConstView in, View out, std::span<const std::int64_t> counts);
  /** Exchanges blocks: block r of every rank's `in` goes to rank r, piece by piece; take(pieces,
   * offset, count) receives what came for this rank. */
  template <class Take>
  void exchange_blocks(ConstView in, const Take& take);

  Host host_;
  SymmetricMemory symmetric_;
  std::uint64_t sequence_ = 0;  // collectives so far
  std::uint32_t sent_ = 0;      // pieces that this rank has put into its mailbox
};

}  // namespace tutti::shm
