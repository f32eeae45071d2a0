// Sums over the ranks that were started and not waited for.
#include "opt/pending_sums.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "communicator/cpu/kernels.hpp"
#include "opt/density.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

std::string tensor_text(const View& tensor) {
  return std::to_string(tensor.count) + " elements of " + std::string(name_of(tensor.dtype));
}

bool same(const View& a, const View& b) {
  return a.data == b.data && a.count == b.count && a.dtype == b.dtype && a.device == b.device;
}

const char* name_of(PendingSums::Fused kind) {
  return kind == PendingSums::Fused::half ? "fused_all_reduce_half" : "fused_all_reduce";
}

/** Refuses what is not memory of this process; `name` says which argument that is. */
void check_memory(const std::string& name, const View& tensor) {
  if (tensor.count < 0 || (tensor.count > 0 && tensor.data == nullptr)) {
    throw InvalidArgument(name + " has " + tensor_text(tensor) +
                          (tensor.count < 0 ? "" : " at a null address"));
  }
  if (tensor.device.kind != DeviceKind::cpu) {
    throw InvalidArgument(name + " is on device cuda:" + std::to_string(tensor.device.ordinal) +
                          "; it must be CPU memory");
  }
}

void check_float(const std::string& name, const View& tensor) {
  check_memory(name, tensor);
  if (tensor.dtype == DType::f32) return;
  throw InvalidArgument(name + " has dtype " + std::string(name_of(tensor.dtype)) +
                        "; it must be f32");
}

void copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

PendingSums::PendingSums(std::shared_ptr<Communicator> communicator, DType half)
    : communicator_(std::move(communicator)),
      half_(half),
      fused_(communicator_),
      single_(communicator_) {}

const Stream& PendingSums::stream() {
  if (stream_.is_inline() && communicator_->world_size() > 1) stream_ = Stream::worker();
  return stream_;
}

void PendingSums::start(View tensor) {
  sums_.push_back({communicator_->all_reduce(tensor, Reduce::sum, stream())});
}

void PendingSums::start_half(View tensor) {
  check_float("all_reduce_half: tensor", tensor);
  const View packet(single_.append(tensor.count * size_of(half_)), tensor.count, half_);
  single_.seal();
  narrow(tensor, packet);
  sums_.push_back({communicator_->all_reduce(packet, Reduce::sum, stream()), packet, {tensor}});
}

// --- Fused --------------------------------------------------------------------------------------

void PendingSums::fill(std::span<const View> tensors, Fused kind) {
  check_fill(tensors, kind);
  // All or nothing: memory is asked for before anything is noted.
  const auto packed = [&](const View& tensor) {
    return tensor.count * size_of(kind == Fused::half ? half_ : tensor.dtype);
  };
  std::int64_t bytes = 0;
  for (const View& tensor : tensors) bytes += packed(tensor);
  filled_.reserve(filled_.size() + tensors.size());
  std::byte* packet = fused_.append(bytes);
  filled_kind_ = kind;
  for (const View& tensor : tensors) {
    if (kind == Fused::half) {
      narrow(tensor, {packet, tensor.count, half_});
    } else {
      copy(packet, tensor.data, tensor.bytes());
    }
    packet += packed(tensor);
    filled_.push_back(tensor);
  }
}

void PendingSums::check_fill(std::span<const View> tensors, Fused kind) const {
  if (!filled_.empty() && kind != filled_kind_) {
    throw InvalidArgument(std::string(name_of(kind)) +
                          ": what was filled before is to be sent by " + name_of(filled_kind_) +
                          " first");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const View& tensor = tensors[i];
    const std::string name = std::string(name_of(kind)) + ": tensor #" + std::to_string(i);
    check_memory(name, tensor);
    if (kind == Fused::half) check_float(name, tensor);
    const DType dtype = filled_.empty() ? tensors.front().dtype : filled_.front().dtype;
    if (tensor.dtype != dtype) {
      throw InvalidArgument(name + " has dtype " + std::string(tutti::name_of(tensor.dtype)) +
                            ", what was filled before it " + std::string(tutti::name_of(dtype)));
    }
  }
}

void PendingSums::check_send(std::span<const View> tensors, Fused kind) const {
  const std::string method = name_of(kind);
  if (filled_.empty() || kind != filled_kind_) {
    throw InvalidArgument(method + ": nothing was filled; call it with send = false first");
  }
  if (tensors.size() != filled_.size()) {
    throw InvalidArgument(method + ": " + std::to_string(filled_.size()) +
                          " tensors were filled and " + std::to_string(tensors.size()) +
                          " are to be sent");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (same(tensors[i], filled_[i])) continue;
    throw InvalidArgument(method + ": tensor #" + std::to_string(i) + " to be sent (" +
                          tensor_text(tensors[i]) + ") is not the one that was filled (" +
                          tensor_text(filled_[i]) + ")");
  }
}

void PendingSums::send(std::span<const View> tensors, Fused kind) {
  check_send(tensors, kind);
  const DType dtype = kind == Fused::half ? half_ : filled_.front().dtype;
  const View packet(fused_.packet(), fused_.packet_bytes() / size_of(dtype), dtype);
  fused_.seal();
  sums_.push_back({communicator_->all_reduce(packet, Reduce::sum, stream()), packet});
  sums_.back().tensors.swap(filled_);
}

// --- Sparse -------------------------------------------------------------------------------------

void PendingSums::start_sparse(const char* method, std::span<const View> tensors,
                               std::optional<View> accumulation, const Sparsity& sparsity) {
  check_spars(method, sparsity.spars, sparsity.top_k);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_float(std::string(method) + ": tensor #" + std::to_string(i), tensors[i]);
    count += tensors[i].count;
  }
  if (accumulation) {
    check_float(std::string(method) + ": accumulation", *accumulation);
    if (accumulation->count != count) {
      throw InvalidArgument(std::string(method) + ": accumulation has " +
                            std::to_string(accumulation->count) + " elements, what is to be sent " +
                            std::to_string(count));
    }
  }
  if (count == 0) return;

  Sum sum;
  View gradient = tensors.front();
  if (tensors.size() > 1) {
    gradient = View(single_.append(count * size_of(DType::f32)), count, DType::f32);
    single_.seal();
    std::int64_t begin = 0;
    for (const View& tensor : tensors) {
      copy(gradient.part(begin, 0).data, tensor.data, tensor.bytes());
      begin += tensor.count;
    }
    sum.packet = gradient;
    sum.tensors.assign(tensors.begin(), tensors.end());
  }
  const SparseView entries = select(sum, gradient, accumulation.value_or(View()), sparsity);
  sum.arrival = communicator_->sparse_all_reduce(entries, gradient, Reduce::sum, stream());
  sums_.push_back(std::move(sum));
}

SparseView PendingSums::select(Sum& sum, ConstView from, View residual, const Sparsity& sparsity) {
  const SparseView selected =
      sparsity.top_k ? selector_.top_k(from, top_k_count(sparsity.spars, from.count), residual)
                     : selector_.above(from, threshold_of(sparsity.spars), residual);
  sum.indices.assign(selected.indices, selected.indices + selected.count);
  sum.values.assign(selected.values, selected.values + selected.count);
  return {sum.indices.data(), sum.values.data(), selected.count};
}

// --- The end ------------------------------------------------------------------------------------

void PendingSums::narrow(View tensor, View packet) const {
  cpu::narrow(static_cast<const float*>(tensor.data), packet.data, tensor.count, half_,
              {.scale = 1.0F / static_cast<float>(communicator_->world_size())});
}

void PendingSums::deliver(const Sum& sum) const {
  const auto ranks = static_cast<float>(communicator_->world_size());
  std::int64_t begin = 0;
  for (const View& tensor : sum.tensors) {
    const View part = sum.packet.part(begin, tensor.count);
    if (part.dtype == tensor.dtype) {
      copy(tensor.data, part.data, tensor.bytes());
    } else {
      cpu::widen(part.data, static_cast<float*>(tensor.data), tensor.count, part.dtype, ranks);
    }
    begin += tensor.count;
  }
}

void PendingSums::wait() {
  stream_.synchronize();
  // From here on nothing is under way, whatever the events say.
  const std::vector<Sum> sums = std::exchange(sums_, {});
  for (const Sum& sum : sums) {
    sum.arrival.wait();
    deliver(sum);
  }
  fused_.clear();
  single_.clear();
}

}  // namespace tutti
