// Puts the description of a part into bytes and back, and computes checksums of headers.
#include "ps/files/format.hpp"

#include <concepts>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/refuse.hpp"
#include "base/xxhash64.hpp"
#include "ps/table/describe.hpp"

namespace tutti::ps {
namespace {

/** Far beyond what fits into memory, and far from what overflows. */
constexpr std::int64_t kMostFloats = std::int64_t{1} << 40U;
constexpr int kMostServers = 1 << 20;

std::string layout_of(const Rule& rule) {
  const std::string text = describe(rule);
  std::string layout = text.substr(0, text.find(':'));
  if (const auto* adagrad = std::get_if<Adagrad>(&rule); adagrad != nullptr && adagrad->row_wise) {
    layout += ", row_wise";
  }
  return layout;
}

template <class T, class U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

/** The fields in their order, for both directions. */
void fields(auto& archive, Is<TableDescription> auto& table) {
  archive(table.name, table.dim, table.layout, table.rule, table.initial, table.seed, table.split,
          table.state_floats, table.steps);
}
void fields(auto& archive, Is<BlockDescription> auto& block) {
  archive(block.parameter, block.elements, block.layout, block.rule, block.offset, block.count,
          block.state_floats);
}
void fields(auto& archive, Is<PartDescription> auto& part) {
  archive(part.server, part.servers, part.round, part.tables, part.blocks);
}

class Encoder {
 public:
  template <class... Fields>
  void operator()(const Fields&... all) {
    (put(all), ...);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  template <class T>
  requires std::is_arithmetic_v<T>
  void put(const T& number) { append(std::as_bytes(std::span(&number, 1))); }
  void put(const std::string& text) {
    put(static_cast<std::int64_t>(text.size()));
    append(std::as_bytes(std::span(text)));
  }
  template <class T>
  void put(const std::vector<T>& list) {
    put(static_cast<std::int64_t>(list.size()));
    for (const T& entry : list) fields(*this, entry);
  }
  void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::vector<std::byte> bytes_;
};

class Decoder {
 public:
  Decoder(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  template <class... Fields>
  void operator()(Fields&... all) {
    (get(all), ...);
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  template <class T>
  requires std::is_arithmetic_v<T>
  void get(T& number) { std::memcpy(&number, take(sizeof number).data(), sizeof number); }
  void get(std::string& text) {
    const std::span<const std::byte> bytes = take(get_length());
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <class T>
  void get(std::vector<T>& list) {
    for (std::int64_t left = get_length(); left > 0; --left) fields(*this, list.emplace_back());
  }
  std::int64_t get_length() {
    std::int64_t length = 0;
    get(length);
    return length;
  }
  std::span<const std::byte> take(std::int64_t count) {
    if (count < 0 || count > std::ssize(bytes_)) {
      refuse_damaged(path_, "its description is cut short");
    }
    const auto taken = bytes_.first(static_cast<std::size_t>(count));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
};

bool is_count(std::int64_t number) { return number >= 0 && number <= kMostFloats; }

bool makes_sense(const TableDescription& table) {
  return table.dim > 0 && is_count(table.dim) && is_count(table.state_floats) && table.steps >= 0;
}

bool makes_sense(const BlockDescription& block) {
  return is_count(block.elements) && is_count(block.offset) && is_count(block.count) &&
         block.offset + block.count <= block.elements && is_count(block.state_floats);
}

}  // namespace

std::uint64_t checksum_of(const SectionHeader& header, std::uint64_t before) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return xxhash64(bytes.first(offsetof(SectionHeader, header_checksum)), before);
}

TableDescription describe(const Table& table) {
  const TableIdentity& identity = table.identity();
  const TableSpec& spec = identity.spec;
  return {.name = spec.name,
          .dim = spec.dim,
          .layout = layout_of(spec.rule),
          .rule = describe(spec.rule),
          .initial = describe(spec.initial),
          .seed = identity.seed,
          .split = static_cast<std::uint32_t>(spec.split),
          .state_floats = state_floats(spec.rule, spec.dim),
          .steps = table.steps()};
}

BlockDescription describe(const OwnBlock& own, std::int64_t begin, std::int64_t count) {
  return {.parameter = own.parameter,
          .elements = own.elements,
          .layout = layout_of(own.rule),
          .rule = describe(own.rule),
          .offset = own.block.offset + begin,
          .count = count,
          .state_floats = state_floats(own.rule, count)};
}

std::int64_t state_arrays(const Rule& rule) {
  if (const auto* adagrad = std::get_if<Adagrad>(&rule)) return adagrad->row_wise ? 0 : 1;
  if (std::holds_alternative<Adam>(rule)) return 2;
  return std::holds_alternative<Momentum>(rule) ? 1 : 0;
}

std::vector<std::byte> encode(const PartDescription& part) {
  Encoder encoder;
  fields(encoder, part);
  return encoder.take();
}

PartDescription decode_part(std::span<const std::byte> bytes, const std::string& path) {
  PartDescription part;
  Decoder decoder(bytes, path);
  fields(decoder, part);
  bool good = decoder.at_end() && part.servers > 0 && part.servers <= kMostServers &&
              part.server >= 0 && part.server < part.servers && part.round >= 0;
  for (const TableDescription& table : part.tables) good = good && makes_sense(table);
  for (const BlockDescription& block : part.blocks) good = good && makes_sense(block);
  if (!good) refuse_damaged(path, "its description makes no sense");
  return part;
}

void refuse_damaged(const std::string& path, const std::string& reason) {
  refuse(path, ": is damaged: ", reason);
}

}  // namespace tutti::ps
