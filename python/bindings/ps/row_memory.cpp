// Memory for the rows that lookups give.
#include "ps/row_memory.hpp"

#include <utility>

#include "tutti/dtype.hpp"

namespace tutti::python {
namespace {

void give_back(dlpack::Managed* managed) {
  const RowMemory::Lent ended(static_cast<RowMemory::Piece*>(managed->context));
}

/** Of a capsule; who has taken what it held has given it another name. */
void free_unless_taken(PyObject* capsule) {
  constexpr const char* kName = dlpack::Managed::kCapsule;
  if (PyCapsule_IsValid(capsule, kName) == 0) return;
  give_back(static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, kName)));
}

}  // namespace

void RowMemory::GiveBack::operator()(Piece* piece) const noexcept {
  const std::shared_ptr<RowMemory> of = std::move(piece->of_);
  of->keep(std::unique_ptr<Piece>(piece));
}

RowMemory::Lent RowMemory::lend(Shape shape) {
  const std::int64_t count = count_of(shape, size_of(DType::f32), "the result has shape ");
  std::unique_ptr<Piece> piece = kept(static_cast<std::size_t>(count));
  if (piece == nullptr) piece = std::make_unique<Piece>(static_cast<std::size_t>(count));
  piece->shape_ = std::move(shape);
  piece->of_ = shared_from_this();
  return Lent(piece.release());
}

RowMemory::~RowMemory() { const std::unique_ptr<Piece> all(free_.exchange(nullptr)); }

std::unique_ptr<RowMemory::Piece> RowMemory::kept(std::size_t count) {
  std::unique_ptr<Piece> all(free_.exchange(nullptr, std::memory_order_acquire));
  std::unique_ptr<Piece>* at = &all;
  while (*at != nullptr && (*at)->count_ != count) at = &(*at)->next_;
  std::unique_ptr<Piece> found = std::move(*at);
  if (found != nullptr) *at = std::move(found->next_);
  put_back(std::move(all));
  return found;
}

void RowMemory::keep(std::unique_ptr<Piece> piece) noexcept {
  if (piece->elements().size_bytes() > kMostBytes) return;
  piece->next_.reset(free_.exchange(nullptr, std::memory_order_acquire));
  put_back(std::move(piece));
}

void RowMemory::put_back(std::unique_ptr<Piece> pieces) noexcept {
  while (pieces != nullptr) {
    std::unique_ptr<Piece>* end = &pieces;
    for (std::size_t i = 0; i < kMostKept && *end != nullptr; ++i) end = &(*end)->next_;
    end->reset();
    Piece* none = nullptr;
    if (free_.compare_exchange_strong(none, pieces.get(), std::memory_order_release)) {
      static_cast<void>(pieces.release());
      return;
    }
    // Others have come back meanwhile, which are newer.
    std::unique_ptr<Piece> newer(free_.exchange(nullptr, std::memory_order_acquire));
    end = &newer;
    while (*end != nullptr) end = &(*end)->next_;
    *end = std::move(pieces);
    pieces = std::move(newer);
  }
}

RowMemory::Piece::Piece(std::size_t count)
    : count_(count),
      lines_(std::make_unique_for_overwrite<Line[]>((count * sizeof(float) + sizeof(Line) - 1) /
                                                    sizeof(Line))) {}

dlpack::Managed& RowMemory::Piece::managed() {
  constexpr dlpack::DataType kFloat32 = {dlpack::kFloat, 32, 1};
  managed_.tensor = {.data = lines_.get(),
                     .device = {dlpack::kCpu, 0},
                     .dimensions = static_cast<std::int32_t>(shape_.size()),
                     .dtype = kFloat32,
                     .shape = shape_.data(),
                     .strides = nullptr,
                     .byte_offset = 0};
  managed_.context = this;
  managed_.deleter = &give_back;
  return managed_;
}

py::object to_dlpack(RowMemory::Lent rows) {
  auto capsule = py::reinterpret_steal<py::object>(
      PyCapsule_New(&rows->managed(), dlpack::Managed::kCapsule, &free_unless_taken));
  if (!capsule) throw py::error_already_set();
  static_cast<void>(rows.release());  // the capsule has it
  return capsule;
}

}  // namespace tutti::python
