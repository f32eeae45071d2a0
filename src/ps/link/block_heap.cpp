// Hands out blocks by powers of two.
#include "ps/link/block_heap.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/page_size.hpp"
#include "tutti/error.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::ps {
namespace {

/** However large /dev/shm is: a server maps two of these for each worker of its host, of which
 * there may be more than a hundred, and a process has 128 TiB of addresses. */
constexpr std::int64_t kMost = std::int64_t{64} << 30;

/** Address space for blocks, in capacities: each is a power of two, and some are free. */
constexpr std::int64_t kRoomForBlocks = 4;

/** What free blocks may hold is this part of the capacity: of one large message no memory stays. */
constexpr std::int64_t kPartOfIdle = 16;
/** Shorter blocks are not worth a call to give them back. */
constexpr std::int64_t kLarge = std::int64_t{1} << 20;

std::int64_t whole_pages(std::int64_t bytes) {
  const std::int64_t page = page_size();
  return (bytes + page - 1) / page * page;
}

int class_of(std::int64_t bytes) {
  const auto pages =
      static_cast<std::uint64_t>(std::max<std::int64_t>(1, whole_pages(bytes) / page_size()));
  return static_cast<int>(std::bit_width(pages - 1));
}

}  // namespace

BlockHeap::BlockHeap(std::int64_t header, std::optional<std::int64_t> most_idle)
    : name_(shm::segment_name(UniqueId::create(), "link")),
      most_(std::min(kMost, shared_memory_size())),
      most_idle_(most_idle.value_or(most_ / kPartOfIdle)),
      segment_(shm::Segment::create(name_)),
      guard_(name_),
      end_(header) {
  segment_.resize(header + kRoomForBlocks * most_);
  segment_.reserve(0, header);
  mapping_ = segment_.map();
}

std::int64_t BlockHeap::take(std::int64_t bytes) {
  const auto fail = [bytes] {
    throw SystemError("cannot reserve " + std::to_string(bytes) + " bytes of shared memory",
                      ENOMEM);
  };
  if (bytes > most_) fail();
  const int size_class = class_of(bytes);
  std::vector<std::int64_t>& free = free_[static_cast<std::size_t>(size_class)];
  if (free.empty()) {
    const std::int64_t size = page_size() << size_class;
    if (size > mapping_->bytes() - end_) fail();
    blocks_.push_back({end_, 0, size_class});
    end_ += size;
    free.push_back(std::ssize(blocks_));
  }
  const std::int64_t block = free.back();
  reserve(blocks_[static_cast<std::size_t>(block) - 1], whole_pages(bytes));
  free.pop_back();
  return block;
}

void BlockHeap::reserve(Block& block, std::int64_t bytes) {
  if (bytes <= block.reserved) return;
  const auto grow = [&] {
    budget_.spend(bytes - block.reserved);
    segment_.reserve(block.offset + block.reserved, bytes - block.reserved);
    block.reserved = bytes;
  };
  try {
    grow();
  } catch (const SystemError&) {
    give_back_free();
    grow();
  }
}

void BlockHeap::give(std::int64_t block) {
  Block& freed = blocks_[static_cast<std::size_t>(block) - 1];
  if (freed.reserved >= kLarge && idle() + freed.reserved > most_idle_) give_back(freed);
  free_[static_cast<std::size_t>(freed.size_class)].push_back(block);
}

std::int64_t BlockHeap::idle() const {
  std::int64_t bytes = 0;
  for (const auto& list : free_) {
    for (const std::int64_t block : list) bytes += at(block).reserved;
  }
  return bytes;
}

void BlockHeap::give_back(Block& block) {
  segment_.give_back(block.offset, block.reserved);
  block.reserved = 0;
}

void BlockHeap::give_back_free() {
  for (const auto& list : free_) {
    for (const std::int64_t block : list) give_back(blocks_[static_cast<std::size_t>(block) - 1]);
  }
}

std::shared_ptr<shm::Mapping> open_heap(const std::string& name, std::int64_t header) {
  shm::Segment segment = shm::Segment::open(name);
  if (!segment || segment.bytes() < header) return nullptr;
  std::shared_ptr<shm::Mapping> mapping = segment.map();
  segment.unlink();
  return mapping;
}

}  // namespace tutti::ps
