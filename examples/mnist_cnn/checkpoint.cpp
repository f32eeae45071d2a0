// Checkpoint files: a header, the model's signature, the arrays, and a checksum over all of it.
#include "checkpoint.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <system_error>
#include <type_traits>

#include "options.hpp"
#include "tutti/output_file.hpp"

namespace mnist {
namespace {

constexpr std::array<char, 8> kMagic{'T', 'U', 'T', 'T', 'I', 'C', 'N', 'N'};
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kMostLegible = 1000;
using Checksum = std::uint32_t;

Checksum checksum(std::span<const std::byte> bytes) {
  return static_cast<Checksum>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

bool is_printable(char character) { return character >= ' ' && character <= '~'; }

/** The names and sizes of the parameters, as one text. */
std::string signature(std::span<const NamedParameter> model) {
  std::string text;
  for (const NamedParameter& parameter : model) {
    if (!text.empty()) text += ' ';
    text += parameter.name + '[' + std::to_string(parameter.value.size()) + ']';
  }
  return text;
}

/** Numbers in the byte order of this machine; arrays and texts with their length before them. */
class Writer {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(std::as_bytes(std::span(&value, 1)));
  }
  template <class Container>
  void sequence(const Container& container) {
    number(static_cast<std::uint64_t>(container.size()));
    append(std::as_bytes(std::span(container)));
  }
  void state(const tutti::OptimizerState& state) {
    number(static_cast<std::uint64_t>(state.arrays.size()));
    for (const auto& [name, array] : state.arrays) {
      sequence(name);
      sequence(array);
    }
    number(static_cast<std::uint64_t>(state.numbers.size()));
    for (const auto& [name, value] : state.numbers) {
      sequence(name);
      number(value);
    }
  }
  void append(std::span<const std::byte> bytes) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + bytes.size());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string path)
      : bytes_(bytes), path_(std::move(path)) {}

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class Container>
  Container sequence() {
    constexpr std::size_t kElement = sizeof(typename Container::value_type);
    const auto size = number<std::uint64_t>();
    if (size > bytes_.size() / kElement) fail("damaged: an array is longer than the file");
    Container container;
    container.resize(size);
    const std::size_t length = size * kElement;
    const std::span<const std::byte> source = take(length);
    if (length > 0) std::memcpy(container.data(), source.data(), length);
    return container;
  }
  tutti::OptimizerState state() {
    tutti::OptimizerState state;
    entries(state.arrays, [&] { return sequence<std::vector<float>>(); });
    entries(state.numbers, [&] { return number<double>(); });
    return state;
  }
  void expect_end() const {
    if (!bytes_.empty()) fail("damaged: it has more than it announces");
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw CheckpointError(path_ + ": " + reason);
  }

 private:
  template <class Map, class Read>
  void entries(Map& map, const Read& read) {
    for (auto n = number<std::uint64_t>(); n > 0; --n) {
      const auto name = sequence<std::string>();
      if (!map.emplace(name, read()).second) fail("damaged: a state has an entry twice");
    }
  }

  std::span<const std::byte> take(std::size_t size) {
    if (size > bytes_.size()) fail("damaged: it ends early");
    const std::span<const std::byte> taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }

  std::span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace

std::vector<std::byte> pack_state(const tutti::OptimizerState& state) {
  Writer writer;
  writer.state(state);
  return writer.bytes();
}

tutti::OptimizerState unpack_state(std::span<const std::byte> bytes) {
  Reader reader(bytes, "a rank's state");
  tutti::OptimizerState state = reader.state();
  reader.expect_end();
  return state;
}

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint,
                     std::span<const NamedParameter> model) {
  Writer writer;
  writer.append(std::as_bytes(std::span(kMagic)));
  writer.number(kVersion);
  writer.sequence(signature(model));
  writer.number(checkpoint.seed);
  writer.number(checkpoint.epochs_done);
  for (const std::vector<float>& parameter : checkpoint.parameters) writer.sequence(parameter);
  writer.number(static_cast<std::uint64_t>(checkpoint.optimizers.size()));
  for (const tutti::OptimizerState& state : checkpoint.optimizers) writer.state(state);
  writer.number(checksum(writer.bytes()));

  tutti::OutputFile file(path);
  file.write(writer.bytes());
  file.commit();
}

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  std::error_code unreachable;
  if (!std::filesystem::is_regular_file(path, unreachable)) {
    throw CheckpointError(path.string() + ": no such file");
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw CheckpointError(path.string() + ": cannot be opened");
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw CheckpointError(path.string() + ": cannot be read");
  return bytes;
}

Checkpoint parse_checkpoint(std::span<const std::byte> bytes, const std::filesystem::path& path,
                            std::span<const NamedParameter> model) {
  Reader header(bytes, path.string());
  const auto magic = std::as_bytes(std::span(kMagic));
  if (bytes.size() < magic.size() || !std::equal(magic.begin(), magic.end(), bytes.begin())) {
    header.fail("not a checkpoint of this program");
  }
  if (bytes.size() < magic.size() + sizeof kVersion + sizeof(Checksum)) header.fail("truncated");
  const std::span<const std::byte> content = bytes.first(bytes.size() - sizeof(Checksum));
  Checksum expected = 0;
  std::memcpy(&expected, bytes.data() + content.size(), sizeof expected);

  Reader reader(content.subspan(magic.size()), path.string());
  const auto version = reader.number<std::uint32_t>();
  if (version != kVersion) reader.fail("version " + std::to_string(version) + " is not known");
  if (checksum(content) != expected) reader.fail("truncated or damaged: the checksum differs");
  const auto other = reader.sequence<std::string>();
  if (other != signature(model)) {
    const bool legible =
        other.size() <= kMostLegible && std::all_of(other.begin(), other.end(), is_printable);
    reader.fail("of another model" +
                (legible ? ": " + other + " instead of " + signature(model) : ""));
  }

  Checkpoint checkpoint;
  checkpoint.seed = reader.number<std::uint64_t>();
  checkpoint.epochs_done = reader.number<std::int64_t>();
  if (checkpoint.epochs_done < 0 || checkpoint.epochs_done > kMostEpochs) {
    reader.fail("damaged: after " + std::to_string(checkpoint.epochs_done) + " epochs");
  }
  for (const NamedParameter& parameter : model) {
    checkpoint.parameters.push_back(reader.sequence<std::vector<float>>());
    if (checkpoint.parameters.back().size() != parameter.value.size()) {
      reader.fail("damaged: " + parameter.name + " has " +
                  std::to_string(checkpoint.parameters.back().size()) + " elements");
    }
  }
  for (auto n = reader.number<std::uint64_t>(); n > 0; --n) {
    checkpoint.optimizers.push_back(reader.state());
  }
  if (checkpoint.optimizers.empty()) reader.fail("damaged: it has no state");
  reader.expect_end();
  return checkpoint;
}

}  // namespace mnist
