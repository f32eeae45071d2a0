// Reads the command line.
#include "support/options.hpp"

#include <algorithm>
#include <sstream>

#include "support/numbers.hpp"
#include "tutti/error.hpp"
#include "tutti/reduce.hpp"

namespace tutti::bench {
namespace {

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

DType parse_dtype(const std::string& text) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (name_of(dtype) == text && has_reduction(dtype, ReduceKind::sum)) return dtype;
  }
  throw InvalidArgument("--dtype is '" + text + "', but must be a number: f32, bf16, u8, i64, ...");
}

std::vector<Buffers> parse_buffers(const std::string& text) {
  std::vector<Buffers> buffers;
  for (const std::string& item : split_list(text)) {
    if (item != "arena" && item != "private") {
      throw InvalidArgument("--buffers has '" + item + "', but takes arena and private");
    }
    buffers.push_back(item == "arena" ? Buffers::arena : Buffers::private_memory);
  }
  return buffers;
}

}  // namespace

const char* name_of(Buffers buffers) { return buffers == Buffers::arena ? "arena" : "private"; }

Options parse_options(int argc, char** argv, Options options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) throw InvalidArgument(option + " needs a value");
    const std::string value = argv[i + 1];
    if (option == "--sizes") {
      options.sizes.clear();
      for (const std::string& item : split_list(value)) {
        options.sizes.push_back(count_of(option, item));
      }
    } else if (option == "--buffers") {
      options.buffers = parse_buffers(value);
    } else if (option == "--dtype") {
      options.dtype = parse_dtype(value);
    } else if (option == "--peers") {
      options.peers = split_list(value);
    } else if (option == "--seconds") {
      options.seconds = positive_of(option, value);
    } else if (option == "--json") {
      options.json = value;
    } else {
      throw InvalidArgument("unknown option " + option +
                            " (--sizes, --buffers, --dtype, --peers, --seconds, --json)");
    }
  }
  for (const std::int64_t bytes : options.sizes) {
    if (bytes % size_of(options.dtype) != 0) {
      throw InvalidArgument("--sizes has " + std::to_string(bytes) +
                            ", which is no whole number of " + std::string(name_of(options.dtype)));
    }
  }
  return options;
}

std::string size_text(std::int64_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + "M";
  if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) return std::to_string(bytes >> 10) + "K";
  return std::to_string(bytes);
}

}  // namespace tutti::bench
