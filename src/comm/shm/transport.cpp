// How the ranks of a host come to a collective, and what they find out about each other.
#include "comm/shm/transport.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/memory.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes for which single copies come into question.
constexpr std::int64_t kFewestPulled = std::int64_t{64} * 1024;

std::uint32_t fold(std::uint64_t hash) { return static_cast<std::uint32_t>(hash ^ (hash >> 32U)); }

}  // namespace

ShmTransport::ShmTransport(const UniqueId& id, int rank, std::vector<int> names,
                           std::chrono::milliseconds timeout,
                           std::optional<Participants> participants)
    : host_(id, rank, std::move(names), timeout, std::move(participants)),
      symmetric_(rank),
      single_copy_(host_.control(), rank, host_.size()),
      inputs_(static_cast<std::size_t>(host_.size())),
      outputs_(inputs_.size()) {
  // Threads of one process have one view of its memory: there nothing can be kept from them.
  if (!host_.is_one_process()) host_.set_on_failure([this] { symmetric_.isolate(); });
}

std::string ShmTransport::describe() const {
  return "shared memory among " + std::to_string(size()) + " ranks of one host";
}

void ShmTransport::abort(std::string_view reason) noexcept {
  const int name = host_.name_of(rank());
  host_.fail_lost(std::span(&name, 1), reason);
}

void ShmTransport::run(const Call& call) {
  switch (call.operation) {
    case Operation::all_reduce:
      return all_reduce(call);
    case Operation::reduce:
      return reduce(call, combine_of(call.reduction, size()));
    case Operation::broadcast:
      return broadcast(call);
    case Operation::all_gather:
      counts_.assign(static_cast<std::size_t>(size()), call.count);
      return gather(call, counts_);
    case Operation::all_gather_v:
      return gather(call, call.counts);
    case Operation::reduce_scatter:
      return reduce_scatter(call);
    case Operation::reduce_scatter_v:
      return reduce_scatter_v(call);
    case Operation::scan:
    case Operation::exscan:
      return scan(call);
    case Operation::gather:
    case Operation::gather_v:
    case Operation::scatter:
    case Operation::scatter_v:
    case Operation::all_to_all_v:
      return exchange(call);
    case Operation::all_to_all:
      return all_to_all(call);
    case Operation::sparse_all_reduce:
      return sparse_all_reduce(call);
    case Operation::barrier:
      return barrier(call);
    case Operation::send:
      return send(call);
    case Operation::recv:
      return recv(call);
    case Operation::allocate:
    case Operation::split:
      break;  // have functions of their own
  }
  throw Error(std::string(name_of(call.operation)) + " is no operation to run");
}

// --- Arriving -----------------------------------------------------------------------------------

std::uint32_t ShmTransport::prepare(Signature signature) {
  host_.check_failure();
  ++sequence_;
  if (signature.sequence == 0) signature.sequence = sequence_;
  host_.control().slot(rank()).signatures[sequence_ & 1U] = signature;
  return fold(signature.hash());
}

void ShmTransport::meet_all(std::uint32_t hash) {
  arrival_of(rank()).signature = hash;
  host_.come(sequence_);
  host_.wait_for_arrivals(sequence_);
}

void ShmTransport::meet_at_once(const Signature& signature, ConstView in, bool line) {
  const std::uint32_t hash = prepare(signature);
  if (line) {
    // The line is written in one go, or a watcher would take it away in between.
    auto& data = arrival_of(rank()).data;
    data.fill(std::byte{0});  // see reduce_lines()
    copy_bytes(data.data(), in.data, in.bytes());
  } else {
    copy_bytes(host_.control().staging(rank()).small[sequence_ & 1U].data(), in.data, in.bytes());
    last_way_ = Choices::kPlainShot;
  }
  meet_all(hash);
  if (!signatures_match()) mismatch();
}

bool ShmTransport::signatures_match() const {
  const std::uint32_t own = arrival_of(rank()).signature;
  for (int peer = 0; peer < size(); ++peer) {
    if (arrival_of(peer).signature != own) return false;
  }
  return true;
}

std::vector<RankSignature> ShmTransport::compared() const {
  std::vector<RankSignature> all;
  for (int peer = 0; peer < size(); ++peer) {
    all.push_back({host_.name_of(peer), signature_of(peer)});
  }
  return all;
}

bool ShmTransport::compare(const Signature& signature) {
  meet_all(prepare(signature));
  host_.check_own_loss();
  return signatures_match();
}

ShmTransport::Move ShmTransport::begin(const Signature& signature, ConstView in, View out,
                                       std::int64_t bytes) {
  Move move;
  move.operation = signature.operation;
  move.bytes = bytes;
  move.line = bytes <= Arrival::kData;
  move.brief = choices_.brief(bytes);
  if (move.line || move.brief) {
    move.choice.way = Choices::kPlainShot;
    meet_at_once(signature, in, move.line);
    return move;
  }

  const std::uint32_t hash = prepare(signature);
  if (bytes <= Choices::kOneShot) {
    move.early = true;
    move.choice = choices_.before(move.operation, bytes);
    if (move.is(Kind::one_shot)) {
      const bool timed = move.choice.trial != Chooser::kSettled;
      const auto start = timed ? Clock::now() : Clock::time_point();
      auto& staging = host_.control().staging(rank()).small[sequence_ & 1U];
      cpu::copy(staging.data(), in.data, in.bytes(), move.choice.way.streamed);
      if (timed) move.spent = Clock::now() - start;
    }
  }
  const bool may_pull = bytes >= kFewestPulled && sequence_ > 1;
  Request request;
  request.in = symmetric_.locate(in.data, in.bytes());
  request.out = symmetric_.locate(out.data, out.bytes());
  request.in_address = reinterpret_cast<std::uintptr_t>(in.data);
  request.out_address = reinterpret_cast<std::uintptr_t>(out.data);
  request.in_place = in.data == out.data ? 1 : 0;
  request.reaches_all = may_pull && single_copy_.reaches_all() ? 1 : 0;
  request.cost = choices_.noted();
  std::memcpy(arrival_of(rank()).data.data(), &request, sizeof request);
  meet_all(hash);
  if (!signatures_match()) mismatch();
  examine(move, request);
  return move;
}

void ShmTransport::mismatch() {
  const std::string text = describe_mismatch(compared());
  host_.fail_mismatch(text);
  throw MismatchError(text);
}

Request ShmTransport::request_of(int peer) const {
  Request request;
  std::memcpy(&request, arrival_of(peer).data.data(), sizeof request);
  return request;
}

void ShmTransport::examine(Move& move, const Request& own) {
  move.direct_in = own.in.region != Location::kPrivate || size() == 1;
  move.direct_out = own.out.region != Location::kPrivate || size() == 1;
  move.reaches_all = own.reaches_all != 0;
  std::uint32_t slowest = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const Request other = request_of(peer);
    move.direct_in = move.direct_in && other.in.region == own.in.region;
    move.direct_out = move.direct_out && other.out.region == own.out.region;
    move.any_in_place = move.any_in_place || other.in_place != 0;
    move.reaches_all = move.reaches_all && other.reaches_all != 0;
    slowest = std::max(slowest, other.cost);
  }
  choices_.learn(slowest);
}

void ShmTransport::decide(Move& move, bool direct) {
  if (move.line || move.brief) return;
  const Choices::Allowed allowed{direct, move.reaches_all};
  move.choice =
      choices_.after(move.operation, move.bytes, allowed, move.early ? &move.choice : nullptr);
  last_way_ = move.choice.way;
  if (move.choice.trial != Chooser::kSettled) move.began = Clock::now() - move.spent;
}

void ShmTransport::finish_reading() {
  host_.check_reads();
  host_.synchronise();
}

void ShmTransport::end(const Move& move) {
  host_.check_own_loss();
  if (move.choice.trial == Chooser::kSettled) return;
  const auto spent = std::chrono::nanoseconds(Clock::now() - move.began).count();
  choices_.note(move.choice, static_cast<std::uint32_t>(std::min<std::int64_t>(spent, UINT32_MAX)));
}

// --- Reaching the others' memory ----------------------------------------------------------------

const std::byte* ShmTransport::contribution_of(const Move& move, int peer) const {
  if (move.line) return arrival_of(peer).data.data();
  return host_.control().staging(peer).small[sequence_ & 1U].data();
}

const std::byte* ShmTransport::input_of(int peer, ConstView own) const {
  if (peer == rank()) return static_cast<const std::byte*>(own.data);
  return symmetric_.resolve(peer, request_of(peer).in);
}

std::byte* ShmTransport::output_of(int peer, View own) const {
  if (peer == rank()) return static_cast<std::byte*>(own.data);
  return symmetric_.resolve(peer, request_of(peer).out);
}

std::span<const void* const> ShmTransport::inputs(const Move& move, ConstView own,
                                                  std::int64_t offset) {
  for (int peer = 0; peer < size(); ++peer) {
    const std::byte* start =
        move.small() && peer != rank() ? contribution_of(move, peer) : input_of(peer, own);
    inputs_[static_cast<std::size_t>(peer)] = start + offset;
  }
  return inputs_;
}

std::span<const void* const> ShmTransport::pieces(std::size_t slot, std::int64_t offset,
                                                  const void* own) {
  for (int peer = 0; peer < size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] =
        host_.control().staging(peer).in[slot].data() + offset;
  }
  inputs_[static_cast<std::size_t>(rank())] = own;
  return inputs_;
}

void ShmTransport::pull(int peer, void* to, std::uint64_t address, std::int64_t bytes) {
  if (bytes == 0) return;
  const int error = single_copy_.read(peer, to, address, bytes);
  if (error == 0) return;
  host_.check_failure();  // it freed the memory because of a failure that it has told
  host_.lose(peer, error == ESRCH ? "its process has ended" : "its memory cannot be read");
}

void ShmTransport::barrier(const Call& call) {
  begin_checked(call);
  host_.check_own_loss();
}

}  // namespace tutti::shm
