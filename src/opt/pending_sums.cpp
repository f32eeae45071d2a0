// Sums over the ranks that were started and not waited for.
#include "opt/pending_sums.hpp"

#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/arguments.hpp"
#include "device/views.hpp"
#include "opt/home_stream.hpp"
#include "opt/step_plan.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

std::string tensor_text(const View& tensor) {
  return std::to_string(tensor.count) + " elements of " + std::string(name_of(tensor.dtype));
}

bool same(const View& a, const View& b) {
  return a.data == b.data && a.count == b.count && a.dtype == b.dtype && a.device == b.device;
}

const char* fused_name(PendingSums::Wire wire) {
  return wire == PendingSums::Wire::half ? "fused_all_reduce_half" : "fused_all_reduce";
}

/** Refuses what is not memory that can be used; `name` says which argument that is. */
void check_memory(const std::string& name, const View& tensor) {
  if (tensor.count < 0 || (tensor.count > 0 && tensor.data == nullptr)) {
    throw InvalidArgument(name + " has " + tensor_text(tensor) +
                          (tensor.count < 0 ? "" : " at a null address"));
  }
  if (tensor.device.kind != DeviceKind::cpu) check_view(name, tensor);  // is there such a GPU?
}

/** The same for what is to be added. */
void check_sum(const std::string& name, const View& tensor) {
  check_memory(name, tensor);
  check_reduce(Reduce::sum, tensor.dtype, tensor.device);
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

/** Copies tensors of one dtype to where they lie one after the other, or back. */
void copy(Arithmetic& arithmetic, std::span<const View> tensors, const View& joined, bool back) {
  std::vector<Piece> pieces;
  pieces.reserve(tensors.size());
  std::int64_t begin = 0;
  for (const View& tensor : tensors) {
    const View part = joined.part(begin, tensor.count);
    if (joined.dtype == DType::f32) {
      pieces.push_back(back ? Piece{part.data, tensor.data, tensor.count}
                            : Piece{tensor.data, part.data, tensor.count});
    } else {
      arithmetic.stream().copy(back ? tensor : part, back ? part : tensor);
    }
    begin += tensor.count;
  }
  if (!pieces.empty()) arithmetic.copy(pieces);
}

BucketView all_of(const View& elements) {
  return {.elements = elements.count, .gradients = elements};
}

}  // namespace

PendingSums::Site::Site(const std::shared_ptr<Communicator>& communicator, const Stream& home,
                        DType wire)
    : arithmetic(make_arithmetic(home)),
      filled(communicator, home),
      joined(communicator, home),
      plain({communicator, 0, home}, Reduce::sum),
      half({communicator, 0, home}, wire, Reduce::sum),
      sparse(make_sparse_compressor({communicator, 0, home}, Reduce::sum)) {
  if (home.device().kind == DeviceKind::cuda) {
    communicator->watch(home);
    apart = Stream::on(home.device());
  } else if (communicator->world_size() > 1) {
    apart = Stream::worker();
  }
}

Compressor& PendingSums::Site::dense(Wire wire) {
  if (wire == Wire::half) return half;
  return plain;
}

const Stream& PendingSums::Site::departure() const {
  if (home().device().kind == DeviceKind::cuda) apart.wait(home().submit([] {}));
  return apart;
}

void PendingSums::Site::clear() {
  home().submit([] {}).wait();
  filled.clear();
  joined.clear();
  half.begin();
  sparse->begin();
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
    if (!cpu_) cpu_ = std::make_unique<Site>(communicator_, Stream(), half_);
    return *cpu_;
  }
  communicator_->check_device(device);
  if (!gpu_) gpu_ = std::make_unique<Site>(communicator_, home_stream(stream_, device), half_);
  if (gpu_->home().device() != device) {
    throw InvalidArgument("a tensor is on " + device_text(device) + ", those before it were on " +
                          device_text(gpu_->home().device()));
  }
  return *gpu_;
}

void PendingSums::add(Sum sum) {
  sum.compressor->encode(sum.elements);
  sum.arrival = sum.compressor->exchange(sum.elements, sum.site->departure());
  sums_.push_back(std::move(sum));
}

void PendingSums::start(View tensor, Wire wire) {
  if (wire == Wire::half) {
    check_float("all_reduce_half: tensor", tensor);
  } else {
    check_sum("all_reduce: tensor", tensor);
  }
  Site& site = this->site(tensor.device);
  add({&site, &site.dense(wire), all_of(tensor)});
}

// --- Fused --------------------------------------------------------------------------------------

void PendingSums::fill(std::span<const View> tensors, Wire wire) {
  check_fill(tensors, wire);
  if (tensors.empty()) return;
  const DType dtype = tensors.front().dtype;
  std::int64_t count = 0;
  for (const View& tensor : tensors) count += tensor.count;
  // All or nothing: memory is asked for before anything is noted.
  filled_.reserve(filled_.size() + tensors.size());
  Site& site = this->site(tensors.front().device);
  const View joined(site.filled.append(count * size_of(dtype)), count, dtype,
                    tensors.front().device);
  copy(*site.arithmetic, tensors, joined, false);
  filled_wire_ = wire;
  filled_.insert(filled_.end(), tensors.begin(), tensors.end());
}

void PendingSums::check_fill(std::span<const View> tensors, Wire wire) const {
  if (!filled_.empty() && wire != filled_wire_) {
    throw InvalidArgument(std::string(fused_name(wire)) +
                          ": what was filled before is to be sent by " + fused_name(filled_wire_) +
                          " first");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const View& tensor = tensors[i];
    const std::string name = std::string(fused_name(wire)) + ": tensor #" + std::to_string(i);
    check_sum(name, tensor);
    if (wire == Wire::half) check_float(name, tensor);
    const View& first = filled_.empty() ? tensors.front() : filled_.front();
    check_device(name, tensor, first.device);
    const DType dtype = first.dtype;
    if (tensor.dtype != dtype) {
      throw InvalidArgument(name + " has dtype " + std::string(tutti::name_of(tensor.dtype)) +
                            ", what was filled before it " + std::string(tutti::name_of(dtype)));
    }
  }
}

void PendingSums::check_send(std::span<const View> tensors, Wire wire) const {
  const std::string method = fused_name(wire);
  if (filled_.empty() || wire != filled_wire_) {
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

void PendingSums::send(std::span<const View> tensors, Wire wire) {
  check_send(tensors, wire);
  const View& first = filled_.front();
  Site& site = this->site(first.device);
  const View joined(site.filled.packet(), site.filled.packet_bytes() / size_of(first.dtype),
                    first.dtype, first.device);
  add({&site, &site.dense(wire), all_of(joined), filled_});
  site.filled.seal();
  filled_.clear();
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
  // Of nothing, too: others may have elements, and all must learn that they differ.
  const Device device = count == 0 ? Device() : tensors.front().device;
  if (device.kind == DeviceKind::cuda && count > kMostSelectable) {
    throw InvalidArgument(std::string(method) + ": " + std::to_string(count) +
                          " elements are to be sent, and at most " +
                          std::to_string(kMostSelectable) + " can be numbered");
  }
  Site& site = this->site(device);
  Sum sum{&site, site.sparse.get(), all_of(View(nullptr, 0, DType::f32))};
  if (count > 0 && tensors.size() == 1) {
    sum.elements = all_of(tensors.front());
  } else if (count > 0) {
    const View joined(site.joined.append(count * size_of(DType::f32)), count, DType::f32, device);
    site.joined.seal();
    copy(*site.arithmetic, tensors, joined, false);
    sum.elements = all_of(joined);
    sum.tensors.assign(tensors.begin(), tensors.end());
  }
  auto* residual = accumulation ? static_cast<float*>(accumulation->data) : nullptr;
  site.sparse->choose(
      {.top_k = sparsity.top_k, .spars = sparsity.spars, .correct = false, .residual = residual});
  add(std::move(sum));
}

// --- The end ------------------------------------------------------------------------------------

void PendingSums::wait() {
  if (failure_) std::rethrow_exception(failure_);
  // A wait that throws loses nothing: what is under way goes on, and what has failed stays so.
  for (const Sum& sum : sums_) sum.arrival.wait();
  try {
    for (const Sum& sum : sums_) {
      sum.compressor->decode(sum.elements);
      copy(*sum.site->arithmetic, sum.tensors, sum.elements.gradients, true);
    }
    for (Site* site : {cpu_.get(), gpu_.get()}) {
      if (site != nullptr) site->clear();
    }
  } catch (...) {  // some tensors have their sums and some do not: that cannot be repeated
    failure_ = std::current_exception();
    throw;
  }
  sums_.clear();
}

}  // namespace tutti
