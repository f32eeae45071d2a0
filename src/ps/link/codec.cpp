// Codes ids and values.
#include "ps/link/codec.hpp"

#include <bit>
#include <cstring>
#include <new>

#include "device/cpu/kernels.hpp"

namespace tutti::ps {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr float kMostHalf = 65504.0F;  // the greatest finite values
constexpr float kMostBFloat16 = 0x1.fep127F;
constexpr unsigned kGroup = 7;           // bits of a byte
constexpr unsigned kMoreFollow = 0x80U;  // in the others

[[noreturn]] void refuse_corrupt(const std::string& what) {
  throw CorruptMessage("a message between hosts makes no sense: " + what);
}

bool has_rows(RequestKind kind) {
  return kind == RequestKind::push_rows || kind == RequestKind::add_rows;
}
std::int64_t dim_of(const RequestHeader& request, const RowFormat& format) {
  if (request.table < 0 || request.table >= std::ssize(format.dims)) {
    refuse_corrupt("there is no table " + std::to_string(request.table));
  }
  return format.dims[static_cast<std::size_t>(request.table)];
}

void check_size(const char* what, std::int64_t bytes, std::int64_t most) {
  if (bytes < 0 || bytes > most) {
    refuse_corrupt(what + std::string(" of ") + std::to_string(bytes) + " bytes");
  }
}

std::int64_t value_bytes(WireFormat wire) { return wire == WireFormat::f32 ? 4 : 2; }
DType dtype_of(WireFormat wire) { return wire == WireFormat::f16 ? DType::f16 : DType::bf16; }

iovec piece(void* data, std::int64_t bytes) { return {data, static_cast<std::size_t>(bytes)}; }

std::uint64_t zigzag(std::uint64_t distance) {
  return (distance << 1U) ^ (std::uint64_t{0} - (distance >> 63U));
}
std::uint64_t unzigzag(std::uint64_t number) {
  return (number >> 1U) ^ (std::uint64_t{0} - (number & 1U));
}

/** Nothing if they would take 8 bytes each or more. Distances are taken modulo 2^64. */
std::vector<std::byte> code_ids(std::span<const std::byte> ids) {
  std::vector<std::byte> coded;
  coded.reserve(ids.size());
  std::uint64_t last = 0;
  for (std::size_t at = 0; at < ids.size(); at += 8) {
    std::uint64_t id = 0;
    std::memcpy(&id, ids.data() + at, sizeof id);
    std::uint64_t left = zigzag(id - last);
    last = id;
    for (; left >= kMoreFollow; left >>= kGroup) {
      coded.push_back(static_cast<std::byte>(left | kMoreFollow));
    }
    coded.push_back(static_cast<std::byte>(left));
    if (coded.size() >= ids.size()) return {};
  }
  return coded;
}

void decode_ids(std::span<const std::byte> coded, std::span<std::byte> ids) {
  std::size_t at = 0;
  std::uint64_t id = 0;
  for (std::size_t out = 0; out < ids.size(); out += 8) {
    std::uint64_t number = 0;
    for (unsigned shift = 0;; shift += kGroup) {
      if (at == coded.size() || shift > 63) refuse_corrupt("its ids are cut off");
      const auto byte = std::to_integer<std::uint64_t>(coded[at++]);
      number |= (byte & (kMoreFollow - 1)) << shift;
      if (byte < kMoreFollow) break;
    }
    id += unzigzag(number);
    std::memcpy(ids.data() + out, &id, sizeof id);
  }
  if (at != coded.size()) refuse_corrupt("bytes follow its ids");
}

}  // namespace

PayloadShape shape_of(const RequestHeader& request, const RowFormat& format, std::int64_t most) {
  if (!is_request(request)) refuse_corrupt("it is no request");
  check_size("a payload", request.payload_bytes, most);
  PayloadShape shape;
  if (has_rows(request.kind) || request.kind == RequestKind::look_up) {
    // No id has a payload of less than 8 bytes: so nothing below overflows.
    check_size("ids", request.count <= most / 8 ? request.count * 8 : -1, request.payload_bytes);
    shape.ids = request.count;
    if (has_rows(request.kind)) {
      const std::int64_t dim = dim_of(request, format);
      const unsigned extra =
          (request.flags & kHasShows) + (request.flags & kHasClicks) / kHasClicks;
      check_size("rows", request.count <= most / (4 * dim) ? request.count * 4 * dim : -1,
                 request.payload_bytes);
      // What is added travels whole: a worker forgets it once it is sent, so what rounding took
      // away would be lost for good.
      const bool rounded = request.kind == RequestKind::push_rows;
      shape.values = rounded ? request.count * dim : 0;
      shape.rest = request.count * 4 * extra + (rounded ? 0 : request.count * 4 * dim);
    }
  } else if (request.kind == RequestKind::push_dense) {
    check_size("elements", request.count <= most / 4 ? request.count * 4 : -1,
               request.payload_bytes);
    shape.values = request.count;
    shape.rest = request.payload_bytes - request.count * 4;
  } else {
    shape.rest = request.payload_bytes;
  }
  if (shape.bytes() != request.payload_bytes) {
    refuse_corrupt("a payload of " + std::to_string(request.payload_bytes) + " bytes where " +
                   std::to_string(shape.bytes()) + " belong");
  }
  return shape;
}

PayloadShape shape_of(const ReplyHeader& reply, const RequestHeader& request,
                      const RowFormat& format, std::int64_t most) {
  check_size("a payload", reply.payload_bytes, most);
  if (reply.outcome != Outcome::done) return {0, 0, reply.payload_bytes};
  if (request.kind == RequestKind::look_up) {
    return {0, reply.payload_bytes / 4, reply.payload_bytes % 4};
  }
  if (request.kind == RequestKind::pull_changed) {
    const std::int64_t dim = dim_of(request, format);
    const std::int64_t rows = reply.payload_bytes / (8 + 4 * dim);
    return {rows, rows * dim, reply.payload_bytes % (8 + 4 * dim)};
  }
  return {0, 0, reply.payload_bytes};
}

PayloadMemory::PayloadMemory(std::int64_t bytes)
    : data_(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), kAlignment))),
      bytes_(static_cast<std::size_t>(bytes)) {}

void PayloadMemory::Free::operator()(std::byte* data) const { ::operator delete(data, kAlignment); }

TravellingPayload::TravellingPayload(const PayloadShape& shape, std::span<const std::byte> payload,
                                     WireFormat wire)
    : shape_(shape), wire_(wire), ids_bytes_(shape.ids * 8) {
  // What is sent is only read, but iovec does not tell.
  auto* const data = const_cast<std::byte*>(payload.data());
  pieces_[0] = piece(data + shape.values_at(), shape.values * 4);
  pieces_[1] = piece(data + shape.rest_at(), shape.rest);
  pieces_[2] = piece(data, ids_bytes_);
  if (wire != WireFormat::f32 && shape.values > 0) {
    values_ = PayloadMemory(shape.values * value_bytes(wire));
    // Finite gradients stay finite.
    const float limit = wire == WireFormat::f16 ? kMostHalf : kMostBFloat16;
    cpu::narrow(reinterpret_cast<const float*>(data + shape.values_at()), values_.bytes().data(),
                shape.values, dtype_of(wire), {1.0F, limit});
    pieces_[0] = piece(values_.bytes().data(), shape.values * value_bytes(wire));
  }
  ids_ = code_ids(payload.first(static_cast<std::size_t>(ids_bytes_)));
  if (!ids_.empty()) {
    ids_bytes_ = std::ssize(ids_);
    pieces_[2] = piece(ids_.data(), ids_bytes_);
  }
}

TravellingPayload::TravellingPayload(const PayloadShape& shape, std::int64_t ids_bytes,
                                     WireFormat wire)
    : shape_(shape), wire_(wire), ids_bytes_(ids_bytes) {
  if (ids_bytes < shape.ids || ids_bytes > shape.ids * 8) {
    refuse_corrupt(std::to_string(shape.ids) + " ids in " + std::to_string(ids_bytes) + " bytes");
  }
  try {
    payload_ = PayloadMemory(shape.bytes());
    std::byte* const data = payload_.bytes().data();
    pieces_[0] = piece(data + shape.values_at(), shape.values * 4);
    pieces_[1] = piece(data + shape.rest_at(), shape.rest);
    pieces_[2] = piece(data, ids_bytes);
    if (wire != WireFormat::f32) {
      values_ = PayloadMemory(shape.values * value_bytes(wire));
      pieces_[0] = piece(values_.bytes().data(), shape.values * value_bytes(wire));
    }
    if (ids_bytes < shape.ids * 8) {
      ids_.resize(static_cast<std::size_t>(ids_bytes));
      pieces_[2] = piece(ids_.data(), ids_bytes);
    }
  } catch (const std::bad_alloc&) {
    refuse_corrupt("there is no memory for " + std::to_string(shape.bytes()) + " bytes");
  }
}

PayloadMemory TravellingPayload::decode() {
  const std::span<std::byte> payload = payload_.bytes();
  if (wire_ != WireFormat::f32) {
    cpu::widen(values_.bytes().data(),
               reinterpret_cast<float*>(payload.data() + shape_.values_at()), shape_.values,
               dtype_of(wire_), 1.0F);
  }
  if (!ids_.empty()) decode_ids(ids_, payload.first(static_cast<std::size_t>(shape_.ids) * 8));
  return std::move(payload_);
}

}  // namespace tutti::ps
