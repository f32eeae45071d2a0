// Fuzzes the pairs of files with images and labels, plain and compressed.
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "data.hpp"
#include "fuzz/fuzzer.hpp"

namespace tutti::fuzz {
namespace {

constexpr std::size_t kImageBytes = 784;
constexpr std::size_t kImagesHead = 16;
constexpr std::size_t kLabelsHead = 8;

/** A file in memory, with a path. */
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("idx", MFD_CLOEXEC)) {
    expect(descriptor_ >= 0, "memfd_create");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }

  void write(std::span<const std::uint8_t> bytes) const {
    expect(::ftruncate(descriptor_, 0) == 0, "ftruncate");
    expect(::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == std::ssize(bytes), "pwrite");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/** In gzip's format. */
Input compressed(std::span<const std::uint8_t> bytes) {
  constexpr int kGzip = 15 + 16;
  z_stream stream{};
  expect(deflateInit2(&stream, 1, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK, "deflate");
  Input result(deflateBound(&stream, bytes.size()));
  const Input source(bytes.begin(), bytes.end());
  stream.next_in = const_cast<Bytef*>(source.data());
  stream.avail_in = static_cast<uInt>(source.size());
  stream.next_out = result.data();
  stream.avail_out = static_cast<uInt>(result.size());
  expect(deflate(&stream, Z_FINISH) == Z_STREAM_END, "deflate");
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

/** Most significant byte first. */
void put_number(Input& bytes, std::size_t at, std::size_t value) {
  for (std::size_t i = 0; i < 4; ++i) {
    if (at + i < bytes.size()) bytes[at + i] = static_cast<std::uint8_t>(value >> (24 - 8 * i));
  }
}

/** What an input begins with. */
struct Head {
  std::uint32_t images = 0;   ///< bytes of the file of images; the rest is that of labels
  std::uint8_t compress = 0;  ///< bits: compress the images, the labels
};

Input pair(std::size_t count, std::uint8_t compress, bool beforehand) {
  Input images(kImagesHead + count * kImageBytes, 3);
  put_number(images, 0, 0x803);
  put_number(images, 4, count);
  put_number(images, 8, 28);
  put_number(images, 12, 28);
  Input labels(kLabelsHead + count, 7);
  put_number(labels, 0, 0x801);
  put_number(labels, 4, count);
  if (beforehand) {
    images = compressed(images);
    labels = compressed(labels);
  }
  Input input;
  append(input, static_cast<std::uint32_t>(images.size()));
  append(input, compress);
  input.insert(input.end(), images.begin(), images.end());
  input.insert(input.end(), labels.begin(), labels.end());
  return input;
}

Head head_of(Parts& parts) { return {parts.number<std::uint32_t>(), parts.number<std::uint8_t>()}; }

}  // namespace

std::vector<Input> seeds() {
  return {pair(1, 0, false), pair(3, 3, false), pair(5, 1, false), pair(4, 2, false),
          pair(2, 0, true)};
}

/** The files are as long as their heads say, and of the same count. */
void mend(Input& input) {
  Parts parts(input);
  const Head head = head_of(parts);
  const auto images = parts.take(head.images);
  const auto labels = parts.rest();
  if (images.size() < kImagesHead || labels.size() < kLabelsHead || images[0] == 0x1F) return;
  const std::size_t count =
      std::min((images.size() - kImagesHead) / kImageBytes, labels.size() - kLabelsHead);
  Input mended = pair(count, head.compress, false);
  const std::size_t front = sizeof head.images + sizeof head.compress;
  std::copy_n(images.begin() + kImagesHead, count * kImageBytes,
              mended.begin() + static_cast<std::ptrdiff_t>(front + kImagesHead));
  for (std::size_t i = 0; i < count; ++i) {
    mended[mended.size() - count + i] = labels[kLabelsHead + i] % 11;
  }
  input = std::move(mended);
}

}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  using tutti::fuzz::compressed;
  using tutti::fuzz::expect;
  using tutti::fuzz::Input;
  static const tutti::fuzz::MemoryFile images;
  static const tutti::fuzz::MemoryFile labels;
  tutti::fuzz::Parts parts({data, size});
  const auto length = parts.number<std::uint32_t>();
  const auto compress = parts.number<std::uint8_t>();
  const auto first = parts.take(length);
  const auto second = parts.rest();
  images.write((compress & 1U) != 0 ? compressed(first) : Input(first.begin(), first.end()));
  labels.write((compress & 2U) != 0 ? compressed(second) : Input(second.begin(), second.end()));
  const mnist::Images read = mnist::read_idx(images.path(), labels.path());
  expect(read.count() >= 1, "no images");
  expect(read.pixels.size() == read.labels.size() * tutti::fuzz::kImageBytes, "pixels are missing");
  for (const std::uint8_t label : read.labels) expect(label <= 9, "a label");
  return 0;
} catch (const mnist::DataError& error) {
  return tutti::fuzz::refused(error);
}
