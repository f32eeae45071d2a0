// IDX reader, the search for the data, shards and batches.
#include "data.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "digits.hpp"
#include "random.hpp"

namespace mnist {
namespace {

constexpr std::int64_t kPixels = 784;
constexpr std::uint32_t kImagesMagic = 0x803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelsMagic = 0x801;  // unsigned bytes, one dimension
constexpr std::uint32_t kLargestCount = 10'000'000;
constexpr std::uint64_t kMostExpansion = 1032;  // deflate: 258 bytes for two bits
constexpr std::uint64_t kPiece = 1U << 24U;

/** A file that is decompressed on the way if it is compressed. */
class IdxFile {
 public:
  explicit IdxFile(const std::filesystem::path& path) : path_(path.string()) {
    if (!std::filesystem::is_regular_file(path)) throw DataError(path_ + ": no such file");
    file_.reset(gzopen(path_.c_str(), "rb"));
    if (file_ == nullptr) throw DataError(path_ + ": cannot be opened");
    gzbuffer(file_.get(), 1U << 18U);
  }

  std::uint32_t read_number() {
    std::array<std::uint8_t, 4> bytes{};
    read(bytes);
    return std::uint32_t{bytes[0]} << 24U | std::uint32_t{bytes[1]} << 16U |
           std::uint32_t{bytes[2]} << 8U | std::uint32_t{bytes[3]};
  }

  void read(std::span<std::uint8_t> target) {
    const std::size_t got = read_some(target);
    position_ += got;
    if (got < target.size()) {
      fail("truncated: ends after " + std::to_string(position_) + " bytes, " +
           std::to_string(target.size() - got) + " more expected");
    }
  }

  void expect_number(std::uint32_t expected, const char* what) {
    const std::uint32_t number = read_number();
    if (number != expected) {
      fail(std::string(what) + " is " + std::to_string(number) + ", expected " +
           std::to_string(expected));
    }
  }

  std::uint32_t read_count() {
    const std::uint32_t count = read_number();
    if (count == 0 || count > kLargestCount) fail("count is " + std::to_string(count));
    return count;
  }

  /** The `size` bytes that the header announces. */
  std::vector<std::uint8_t> read_content(std::uint64_t size) {
    const std::uint64_t whole = position_ + size;
    const std::uint64_t length = std::filesystem::file_size(path_);
    const bool compressed = gzdirect(file_.get()) == 0;
    if (whole > (compressed ? kMostExpansion * length : length)) {
      fail("truncated: " + std::to_string(length) + (compressed ? " compressed" : "") +
           " bytes, but its header announces " + std::to_string(whole));
    }
    // What is compressed may still end early: memory is taken as the content comes.
    std::vector<std::uint8_t> content;
    while (content.size() < size) {
      const std::size_t had = content.size();
      content.resize(std::min<std::uint64_t>(size, had + kPiece));
      read(std::span(content).subspan(had));
    }
    return content;
  }

  void expect_end() {
    std::array<std::uint8_t, 1> byte{};
    if (read_some(byte) != 0) {
      fail("longer than the " + std::to_string(position_) + " bytes that its header announces");
    }
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw DataError(path_ + ": " + reason);
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose_r(file); }
  };

  std::size_t read_some(std::span<std::uint8_t> target) {
    std::size_t got = 0;
    while (got < target.size()) {
      const auto step = static_cast<unsigned>(std::min(target.size() - got, kPiece));
      const int n = gzread(file_.get(), target.data() + got, step);
      int error = Z_OK;
      const char* message = gzerror(file_.get(), &error);
      // Z_BUF_ERROR: the compressed stream ends early, which the caller sees as a short count.
      if (n < 0 && error != Z_BUF_ERROR) fail(std::string("damaged: ") + message);
      if (n <= 0) break;
      got += static_cast<std::size_t>(n);
    }
    return got;
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::size_t position_ = 0;
};

/** `folder`/`name` or `folder`/`name`.gz. */
std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    std::filesystem::path path = folder / (name + suffix);
    if (std::filesystem::exists(path)) return path;
  }
  throw DataError((folder / name).string() + ": no such file, nor with .gz");
}

}  // namespace

Images read_idx(const std::filesystem::path& images, const std::filesystem::path& labels) {
  IdxFile image_file(images);
  image_file.expect_number(kImagesMagic, "magic number");
  const std::uint32_t count = image_file.read_count();
  image_file.expect_number(28, "number of rows");
  image_file.expect_number(28, "number of columns");

  IdxFile label_file(labels);
  label_file.expect_number(kLabelsMagic, "magic number");
  const std::uint32_t label_count = label_file.read_count();
  if (label_count != count) {
    label_file.fail(std::to_string(label_count) + " labels for the " + std::to_string(count) +
                    " images of " + images.string());
  }

  Images result;
  result.labels = label_file.read_content(count);
  label_file.expect_end();
  const auto wrong = std::find_if(result.labels.begin(), result.labels.end(),
                                  [](std::uint8_t label) { return label > 9; });
  if (wrong != result.labels.end()) {
    label_file.fail("label " + std::to_string(wrong - result.labels.begin()) + " is " +
                    std::to_string(*wrong) + ", expected 0 to 9");
  }

  result.pixels = image_file.read_content(std::uint64_t{count} * kPixels);
  image_file.expect_end();
  return result;
}

Data read_mnist(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) throw DataError(folder.string() + ": no such folder");
  const auto read = [&](const std::string& set) {
    const std::filesystem::path images = find_file(folder, set + "-images-idx3-ubyte");
    return read_idx(images, find_file(folder, set + "-labels-idx1-ubyte"));
  };
  return {read("train"), read("t10k"), "mnist", folder.string()};
}

Data load_data(const std::filesystem::path& folder, std::uint64_t seed) {
  if (!folder.empty()) return read_mnist(folder);
  const char* variable = std::getenv("TUTTI_MNIST_DIR");
  if (variable != nullptr && *variable != '\0') return read_mnist(variable);
  const std::filesystem::path usual = "data/mnist";
  if (std::filesystem::exists(usual)) return read_mnist(usual);
  return {generate_digits(60'000, seed, 0), generate_digits(10'000, seed, 1), "generated",
          "no --data-dir, no TUTTI_MNIST_DIR, no folder data/mnist"};
}

Shard training_shard(std::int64_t total, int rank, int world_size) {
  const std::int64_t size = (total + world_size - 1) / world_size;
  return {rank * size % total, size};
}

Shard evaluation_shard(std::int64_t total, int rank, int world_size) {
  const std::int64_t first = total * rank / world_size;
  return {first, total * (rank + 1) / world_size - first};
}

std::vector<std::int64_t> training_order(std::int64_t total, int rank, int world_size,
                                         std::uint64_t seed, std::int64_t epoch) {
  const Shard shard = training_shard(total, rank, world_size);
  std::vector<std::int64_t> order(static_cast<std::size_t>(shard.size));
  std::iota(order.begin(), order.end(), shard.first);
  for (std::int64_t& index : order) index %= total;
  // Shuffled after Fisher and Yates.
  Random random(seed, static_cast<std::uint64_t>(epoch) << 32U | static_cast<std::uint64_t>(rank));
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(static_cast<std::uint32_t>(i))]);
  }
  return order;
}

void gather(const Images& images, std::span<const std::int64_t> indices, Batch& batch) {
  batch.pixels.resize(indices.size() * static_cast<std::size_t>(kPixels));
  batch.labels.resize(indices.size());
  auto target = batch.pixels.begin();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    target = std::copy_n(images.pixels.begin() + indices[i] * kPixels, kPixels, target);
    batch.labels[i] = images.labels[static_cast<std::size_t>(indices[i])];
  }
}

}  // namespace mnist
