// Sums over the ranks that were started and not waited for.
#include "opt/pending_sums.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr std::int64_t kAlignment = 64;          // of each sum in the fused buffer, in bytes
constexpr std::int64_t kSmallestBuffer = 65536;  // bytes

std::string tensor_text(const View& tensor) {
  return std::to_string(tensor.count) + " elements of " + std::string(name_of(tensor.dtype));
}

bool same(const View& a, const View& b) {
  return a.data == b.data && a.count == b.count && a.dtype == b.dtype && a.device == b.device;
}

}  // namespace

void PendingSums::start(View tensor) { sums_.push_back({sum(tensor), nullptr, {}}); }

Event PendingSums::sum(View tensor) {
  if (stream_.is_inline() && communicator_->world_size() > 1) stream_ = Stream::worker();
  return communicator_->all_reduce(tensor, Reduce::sum, stream_);
}

void PendingSums::fill(std::span<const View> tensors) {
  check_fill(tensors);
  std::int64_t bytes = 0;
  for (const View& tensor : tensors) bytes += tensor.bytes();
  reserve(bytes);
  for (const View& tensor : tensors) {
    if (tensor.count > 0) {
      std::memcpy(static_cast<std::byte*>(buffer_.data()) + end_, tensor.data,
                  static_cast<std::size_t>(tensor.bytes()));
    }
    end_ += tensor.bytes();
    filled_.push_back(tensor);
  }
}

void PendingSums::check_fill(std::span<const View> tensors) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const View& tensor = tensors[i];
    const std::string name = "fused_all_reduce: tensor #" + std::to_string(i);
    if (tensor.count < 0 || (tensor.count > 0 && tensor.data == nullptr)) {
      throw InvalidArgument(name + " has " + tensor_text(tensor) +
                            (tensor.count < 0 ? "" : " at a null address"));
    }
    if (tensor.device.kind != DeviceKind::cpu) {
      throw InvalidArgument(name + " is on device cuda:" + std::to_string(tensor.device.ordinal) +
                            "; the fused buffer is CPU memory");
    }
    const DType dtype = filled_.empty() ? tensors.front().dtype : filled_.front().dtype;
    if (tensor.dtype != dtype) {
      throw InvalidArgument(name + " has dtype " + std::string(name_of(tensor.dtype)) +
                            ", what was filled before it " + std::string(name_of(dtype)));
    }
  }
}

void PendingSums::reserve(std::int64_t bytes) {
  if (end_ + bytes <= buffer_.bytes()) return;
  const std::int64_t filled = end_ - begin_;
  Buffer larger =
      communicator_->allocate(std::max({filled + bytes, 2 * buffer_.bytes(), kSmallestBuffer}));
  if (filled > 0) std::memcpy(larger.data(), fused(), static_cast<std::size_t>(filled));
  std::swap(buffer_, larger);
  outgrown_.push_back(std::move(larger));
  begin_ = 0;
  end_ = filled;
}

void PendingSums::send(std::span<const View> tensors) {
  if (filled_.empty()) {
    throw InvalidArgument("fused_all_reduce: nothing was filled; call it with send = false first");
  }
  if (tensors.size() != filled_.size()) {
    throw InvalidArgument("fused_all_reduce: " + std::to_string(filled_.size()) +
                          " tensors were filled and " + std::to_string(tensors.size()) +
                          " are to be sent");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (same(tensors[i], filled_[i])) continue;
    throw InvalidArgument("fused_all_reduce: tensor #" + std::to_string(i) + " to be sent (" +
                          tensor_text(tensors[i]) + ") is not the one that was filled (" +
                          tensor_text(filled_[i]) + ")");
  }
  const DType dtype = filled_.front().dtype;
  const View packet(fused(), (end_ - begin_) / size_of(dtype), dtype);
  sums_.push_back({sum(packet), fused(), {}});
  sums_.back().tensors.swap(filled_);
  begin_ = end_ = (end_ + kAlignment - 1) / kAlignment * kAlignment;
}

void PendingSums::wait() {
  stream_.synchronize();
  // From here on nothing is under way, whatever the events say.
  const std::vector<Sum> sums = std::exchange(sums_, {});
  const std::vector<Buffer> outgrown = std::exchange(outgrown_, {});
  for (const Sum& sum : sums) {
    sum.arrival.wait();
    const std::byte* from = sum.fused;
    for (const View& tensor : sum.tensors) {
      if (tensor.count > 0)
        std::memcpy(tensor.data, from, static_cast<std::size_t>(tensor.bytes()));
      from += tensor.bytes();
    }
  }
  if (filled_.empty()) begin_ = end_ = 0;
}

}  // namespace tutti
