// Keeps a server's blocks in shared memory, where one process writes and others read.
#include "ps/dense/store.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "base/available_memory.hpp"
#include "base/memory.hpp"
#include "base/refuse.hpp"
#include "comm/shm/memory/segment.hpp"
#include "ps/dense/layout.hpp"
#include "ps/table/describe.hpp"
#include "ps/table/rules.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

std::int64_t bytes_of(std::int64_t elements) {
  return elements * static_cast<std::int64_t>(sizeof(float));
}

/** The blocks' values and their rules' state. */
std::int64_t count_floats(const std::vector<OwnBlock>& blocks) {
  std::int64_t values = 0;
  std::int64_t state = 0;
  for (const OwnBlock& own : blocks) {
    values = begin_of(own.block, values) + own.block.count;
    state += state_floats(own.rule, own.block.count);
  }
  return values + state;
}

void require_elements(const char* what, std::span<const float> given, std::int64_t expected) {
  if (std::ssize(given) == expected) return;
  refuse(what, " has ", given.size(), " elements, but there are ", expected);
}

/** Throws SystemError. What the machine does not have the kernel would kill somebody for. */
void require_memory(std::int64_t bytes) {
  const AvailableMemory available = available_memory();
  if (available.fits(bytes, 1)) return;
  throw SystemError("cannot reserve " + std::to_string(bytes) +
                        " bytes for dense parameters: " + available.describe(),
                    ENOMEM);
}

}  // namespace

class DenseStore::Impl {
 public:
  struct Part {
    std::int64_t offset;
    std::shared_ptr<const RuleKernel> kernel;
    std::vector<float> state;
  };

  Impl(std::vector<OwnBlock> own_blocks, const std::string& segment_name)
      : blocks(std::move(own_blocks)) {
    require_memory(bytes_of(count_floats(blocks)));
    std::int64_t offset = 0;
    std::map<std::string, std::shared_ptr<const RuleKernel>> kernels;  // which have tables
    for (const OwnBlock& own : blocks) {
      auto& kernel = kernels[describe(own.rule)];
      if (!kernel) kernel = std::make_shared<const RuleKernel>(own.rule);
      std::vector<float> state(static_cast<std::size_t>(state_floats(own.rule, own.block.count)));
      kernel->start(state.data(), own.block.count);
      offset = begin_of(own.block, offset);
      parts.push_back({offset, kernel, std::move(state)});
      offset += own.block.count;
    }
    const auto count = static_cast<std::size_t>(offset);
    if (segment_name.empty()) {
      private_values_.resize(count);
      values = private_values_;
    } else {
      const std::int64_t bytes = bytes_of(std::max<std::int64_t>(1, offset));  // none is not mapped
      segment_ = shm::Segment::create(segment_name);
      name_.emplace(segment_name);
      segment_.resize(bytes);
      segment_.reserve(0, bytes);
      mapping_ = segment_.map();
      values = {reinterpret_cast<float*>(mapping_->base()), count};
    }
  }

  void unlink() {
    name_.reset();
    segment_ = {};
  }

  /** Of a block. */
  std::span<float> values_of(std::size_t number) const {
    return values.subspan(static_cast<std::size_t>(parts[number].offset),
                          static_cast<std::size_t>(blocks[number].block.count));
  }

  std::vector<OwnBlock> blocks;
  std::vector<Part> parts;
  std::span<float> values;

 private:
  shm::Segment segment_;
  std::optional<shm::NameGuard> name_;
  std::shared_ptr<shm::Mapping> mapping_;
  std::vector<float> private_values_;
};

DenseStore::DenseStore(std::vector<OwnBlock> blocks, const std::string& segment)
    : impl_(std::make_unique<Impl>(std::move(blocks), segment)) {}
DenseStore::DenseStore(DenseStore&&) noexcept = default;
DenseStore& DenseStore::operator=(DenseStore&&) noexcept = default;
DenseStore::~DenseStore() = default;

void DenseStore::unlink() { impl_->unlink(); }
std::int64_t DenseStore::elements() const { return std::ssize(impl_->values); }
std::span<const OwnBlock> DenseStore::blocks() const { return impl_->blocks; }
std::span<const float> DenseStore::values() const { return impl_->values; }

void DenseStore::set(std::span<const float> values) {
  require_elements("values", values, elements());
  copy_bytes(impl_->values.data(), values.data(), bytes_of(elements()));
}

void DenseStore::update(const BlockGradient& gradient, float scale) {
  const OwnBlock& own = impl_->blocks.at(static_cast<std::size_t>(gradient.block));
  require_elements("gradient", gradient.elements, own.block.count);
  const std::array<const float*, 1> one{gradient.elements.data()};
  update(gradient.block, one, scale);
}

void DenseStore::update(std::int64_t block, std::span<const float* const> gradients, float scale) {
  const auto number = static_cast<std::size_t>(block);
  Impl::Part& part = impl_->parts.at(number);
  const std::span<float> values = impl_->values_of(number);
  part.kernel->apply(values.data(), part.state.data(), gradients, std::ssize(values), scale);
}

void DenseStore::add(std::span<const float> deltas) {
  require_elements("deltas", deltas, elements());
  add_scaled(impl_->values.data(), deltas.data(), elements(), 1.0F);
}

std::span<const float> DenseStore::values(std::int64_t block) const {
  return impl_->values_of(static_cast<std::size_t>(block));
}

std::span<const float> DenseStore::state(std::int64_t block) const {
  return impl_->parts.at(static_cast<std::size_t>(block)).state;
}

void DenseStore::restore(std::int64_t block, std::span<const float> values,
                         std::span<const float> state) {
  const auto number = static_cast<std::size_t>(block);
  Impl::Part& part = impl_->parts.at(number);
  const std::span<float> own = impl_->values_of(number);
  require_elements("values", values, std::ssize(own));
  require_elements("state", state, std::ssize(part.state));
  copy_bytes(own.data(), values.data(), bytes_of(std::ssize(own)));
  std::copy(state.begin(), state.end(), part.state.begin());
}

class DenseReader::Impl {
 public:
  Impl(const std::string& name, std::int64_t elements) {
    const shm::Segment segment = shm::Segment::open(name);
    if (!segment) throw SystemError("shared memory " + name + " of a server", ENOENT);
    mapping_ = segment.map(shm::Access::read_only);
    if (mapping_->bytes() < bytes_of(elements)) {
      throw SystemError("shared memory " + name + " of a server has " +
                            std::to_string(mapping_->bytes()) + " bytes, but " +
                            std::to_string(elements) + " elements were to be there",
                        EINVAL);
    }
    values_ = {reinterpret_cast<const float*>(mapping_->base()),
               static_cast<std::size_t>(elements)};
  }

  std::span<const float> values() const { return values_; }

 private:
  std::shared_ptr<shm::Mapping> mapping_;
  std::span<const float> values_;
};

DenseReader::DenseReader(const std::string& segment, std::int64_t elements)
    : impl_(std::make_unique<Impl>(segment, elements)) {}
DenseReader::DenseReader(DenseReader&&) noexcept = default;
DenseReader& DenseReader::operator=(DenseReader&&) noexcept = default;
DenseReader::~DenseReader() = default;

std::span<const float> DenseReader::values() const { return impl_->values(); }

}  // namespace tutti::ps
