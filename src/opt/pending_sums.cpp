// Sums over the ranks that were started and not waited for.
#include "opt/pending_sums.hpp"

#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "device/views.hpp"
#include "opt/density.hpp"
#include "opt/home_stream.hpp"
#include "opt/mode_checks.hpp"
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

/** Refuses what is not memory that can be used; `name` says which argument that is. */
void check_memory(const std::string& name, const View& tensor) {
  if (tensor.count < 0 || (tensor.count > 0 && tensor.data == nullptr)) {
    throw InvalidArgument(name + " has " + tensor_text(tensor) +
                          (tensor.count < 0 ? "" : " at a null address"));
  }
  if (tensor.device.kind != DeviceKind::cpu) check_view(name, tensor);  // is there such a GPU?
}

void check_float(const std::string& name, const View& tensor) {
  check_memory(name, tensor);
  if (tensor.dtype == DType::f32) return;
  throw InvalidArgument(name + " has dtype " + std::string(name_of(tensor.dtype)) +
                        "; it must be f32");
}

void check_device(const std::string& name, const View& tensor, Device expected) {
  if (tensor.device == expected) return;
  throw InvalidArgument(name + " is on " + device_text(tensor.device) + ", what is before it on " +
                        device_text(expected));
}

/** Copies between tensors of one dtype. */
void copy(Arithmetic& arithmetic, std::span<const Piece> pieces, DType dtype) {
  if (dtype == DType::f32) return arithmetic.copy(pieces);
  const Device device = arithmetic.device();
  for (const Piece& piece : pieces) {
    arithmetic.stream().copy({piece.to, piece.count, dtype, device},
                             {piece.from, piece.count, dtype, device});
  }
}

/** Pairs each tensor with its part of the packet, in which they lie one after the other. */
std::vector<Piece> pieces_of(std::span<const View> tensors, const View& packet, bool to_packet) {
  std::vector<Piece> pieces;
  pieces.reserve(tensors.size());
  std::int64_t begin = 0;
  for (const View& tensor : tensors) {
    void* const part = packet.part(begin, tensor.count).data;
    pieces.push_back(to_packet ? Piece{tensor.data, part, tensor.count}
                               : Piece{part, tensor.data, tensor.count});
    begin += tensor.count;
  }
  return pieces;
}

}  // namespace

PendingSums::Site::Site(const std::shared_ptr<Communicator>& communicator, const Stream& home)
    : arithmetic(make_arithmetic(home)), fused(communicator, home), single(communicator, home) {
  if (home.device().kind == DeviceKind::cuda) {
    apart = Stream::on(home.device());
  } else if (communicator->world_size() > 1) {
    apart = Stream::worker();
  }
}

const Stream& PendingSums::Site::departure() const {
  if (home().device().kind == DeviceKind::cuda) apart.wait(home().submit([] {}));
  return apart;
}

PendingSums::PendingSums(std::shared_ptr<Communicator> communicator, DType half, Stream stream)
    : communicator_(std::move(communicator)), half_(half), stream_(std::move(stream)) {}

PendingSums::~PendingSums() {
  if (!gpu_) return;
  // A GPU may still work in the packets. What has failed is known already.
  const auto end = [](const Stream& stream) {
    try {
      stream.synchronize();
    } catch (const std::exception& error) {
      log(LogLevel::debug, error.what());
    }
  };
  end(gpu_->apart);
  end(gpu_->home());
}

/** Of tensors in memory of `device`. */
PendingSums::Site& PendingSums::site(Device device) {
  if (device.kind == DeviceKind::cpu) {
    if (!cpu_) cpu_ = std::make_unique<Site>(communicator_, Stream());
    return *cpu_;
  }
  communicator_->check_device(device);
  if (!gpu_) gpu_ = std::make_unique<Site>(communicator_, home_stream(stream_, device));
  if (gpu_->home().device() != device) {
    throw InvalidArgument("a tensor is on " + device_text(device) + ", those before it were on " +
                          device_text(gpu_->home().device()));
  }
  return *gpu_;
}

/** Copies tensors to where they travel, or narrows them to what travels. */
void PendingSums::pack(Site& site, std::span<const View> tensors, View packet) const {
  if (tensors.empty()) return;
  const std::vector<Piece> pieces = pieces_of(tensors, packet, true);
  if (packet.dtype == tensors.front().dtype) {
    copy(*site.arithmetic, pieces, packet.dtype);
  } else {
    const float scale = 1.0F / static_cast<float>(communicator_->world_size());
    site.arithmetic->narrow(pieces, packet.dtype, {.scale = scale});
  }
}

void PendingSums::start(View tensor) {
  check_memory("all_reduce: tensor", tensor);
  Site& site = this->site(tensor.device);
  sums_.push_back({communicator_->all_reduce(tensor, Reduce::sum, site.departure()), &site});
}

void PendingSums::start_half(View tensor) {
  check_float("all_reduce_half: tensor", tensor);
  Site& site = this->site(tensor.device);
  const View packet(site.single.append(tensor.count * size_of(half_)), tensor.count, half_,
                    tensor.device);
  site.single.seal();
  pack(site, std::span(&tensor, 1), packet);
  sums_.push_back(
      {communicator_->all_reduce(packet, Reduce::sum, site.departure()), &site, packet, {tensor}});
}

// --- Fused --------------------------------------------------------------------------------------

void PendingSums::fill(std::span<const View> tensors, Fused kind) {
  check_fill(tensors, kind);
  if (tensors.empty()) return;
  const DType dtype = kind == Fused::half ? half_ : tensors.front().dtype;
  std::int64_t count = 0;
  for (const View& tensor : tensors) count += tensor.count;
  // All or nothing: memory is asked for before anything is noted.
  filled_.reserve(filled_.size() + tensors.size());
  Site& site = this->site(tensors.front().device);
  const View packet(site.fused.append(count * size_of(dtype)), count, dtype,
                    tensors.front().device);
  pack(site, tensors, packet);
  filled_kind_ = kind;
  filled_.insert(filled_.end(), tensors.begin(), tensors.end());
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
    const View& first = filled_.empty() ? tensors.front() : filled_.front();
    check_device(name, tensor, first.device);
    const DType dtype = first.dtype;
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
  Site& site = this->site(filled_.front().device);
  const View packet(site.fused.packet(), site.fused.packet_bytes() / size_of(dtype), dtype,
                    filled_.front().device);
  site.fused.seal();
  sums_.push_back(
      {communicator_->all_reduce(packet, Reduce::sum, site.departure()), &site, packet});
  sums_.back().tensors.swap(filled_);
}

// --- Sparse -------------------------------------------------------------------------------------

void PendingSums::start_sparse(const char* method, std::span<const View> tensors,
                               std::optional<View> accumulation, const Sparsity& sparsity) {
  check_spars(method, sparsity.spars, sparsity.top_k);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = std::string(method) + ": tensor #" + std::to_string(i);
    check_float(name, tensors[i]);
    check_device(name, tensors[i], tensors.front().device);
    count += tensors[i].count;
  }
  if (accumulation) {
    const std::string name = std::string(method) + ": accumulation";
    check_float(name, *accumulation);
    if (!tensors.empty()) check_device(name, *accumulation, tensors.front().device);
    if (accumulation->count != count) {
      throw InvalidArgument(std::string(method) + ": accumulation has " +
                            std::to_string(accumulation->count) + " elements, what is to be sent " +
                            std::to_string(count));
    }
  }
  if (count == 0) {  // others may have elements: all must learn that they differ
    Site& site = this->site(Device());
    const View nothing(nullptr, 0, DType::f32);
    sums_.push_back(
        {communicator_->sparse_all_reduce({}, nothing, Reduce::sum, site.departure()), &site});
    return;
  }
  const Device device = tensors.front().device;
  if (device.kind == DeviceKind::cuda && count > kMostSelectable) {
    throw InvalidArgument(std::string(method) + ": " + std::to_string(count) +
                          " elements are to be sent, and at most " +
                          std::to_string(kMostSelectable) + " can be numbered");
  }

  Sum sum;
  Site& site = this->site(device);
  sum.site = &site;
  View gradient = tensors.front();
  if (tensors.size() > 1) {
    gradient = View(site.single.append(count * size_of(DType::f32)), count, DType::f32, device);
    site.single.seal();
    pack(site, tensors, gradient);
    sum.tensors.assign(tensors.begin(), tensors.end());
  }
  sum.packet = gradient;
  const View residual = accumulation.value_or(View());
  if (device.kind == DeviceKind::cpu) {
    const SparseView entries = select(sum, gradient, residual, sparsity);
    sum.arrival =
        communicator_->sparse_all_reduce(entries, gradient, Reduce::sum, site.departure());
  } else {
    sum.gathered.emplace(*communicator_, *site.arithmetic);
    gather(*sum.gathered, gradient, residual, sparsity);
    const GatheredEntries entries = sum.gathered->packet();
    sum.arrival = communicator_->all_gather(entries.own, entries.all, site.departure());
  }
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

void PendingSums::gather(GatheredSum& sum, ConstView from, View residual,
                         const Sparsity& sparsity) {
  const auto* values = static_cast<const float*>(from.data);
  auto* kept = static_cast<float*>(residual.data);
  if (sparsity.top_k) {
    sum.select_top_k(values, kept, from.count, top_k_count(sparsity.spars, from.count));
  } else {
    sum.select_above(values, kept, from.count, threshold_of(sparsity.spars));
  }
}

// --- The end ------------------------------------------------------------------------------------

void PendingSums::deliver(const Sum& sum) const {
  if (sum.gathered) sum.gathered->add_up(static_cast<float*>(sum.packet.data), sum.packet.count);
  if (sum.tensors.empty()) return;
  const std::vector<Piece> pieces = pieces_of(sum.tensors, sum.packet, false);
  if (sum.packet.dtype == sum.tensors.front().dtype) {
    copy(*sum.site->arithmetic, pieces, sum.packet.dtype);
  } else {
    const auto ranks = static_cast<float>(communicator_->world_size());
    sum.site->arithmetic->widen(pieces, sum.packet.dtype, ranks, nullptr);
  }
}

void PendingSums::wait() {
  // A wait that throws loses nothing: what is under way goes on, and what has failed stays so.
  for (const Sum& sum : sums_) sum.arrival.wait();
  for (const Sum& sum : std::exchange(sums_, {})) deliver(sum);
  for (Site* site : {cpu_.get(), gpu_.get()}) {
    if (site == nullptr) continue;
    site->home().synchronize();
    site->fused.clear();
    site->single.clear();
  }
}

}  // namespace tutti
