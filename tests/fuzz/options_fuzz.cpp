// Fuzzes the command line of the example, one argument per line.
#include "options.hpp"

#include <cmath>

#include "fuzz/fuzzer.hpp"

namespace tutti::fuzz {

std::vector<Input> seeds() {
  return {input_of("--epochs\n3\n--batch-size=17\n--lr\n0.1"),
          input_of("--dist-option=sparseTopK\n--spars\n0.5\n--clip-norm\n2\n--warm-up-epochs=3"),
          input_of("--save=a\n--resume=b\n--json\nc\n--data-dir=d\n--device\ncpu\n--ranks=2"),
          input_of("--seed=18446744073709551615\n--momentum=0\n--weight-decay=1e9\n--help"),
          input_of("--dist-option\nsparseThreshold\n--momentum-correction\n--spars=1e9")};
}

void mend(Input&) {}

}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  using tutti::fuzz::expect;
  std::vector<std::string> words;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    words.emplace_back(line);
  }
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const mnist::Options options = mnist::parse_options(arguments);
  expect(options.epochs >= 1 && options.epochs <= 1'000'000, "the epochs");
  expect(options.batch_size >= 1 && options.batch_size <= 4096, "the batch size");
  for (const float rate : {options.lr, options.momentum, options.weight_decay, options.clip_norm}) {
    expect(rate >= 0.0F && rate <= 1e9F, "a rate");
  }
  expect(options.spars >= 0.0 && options.spars <= 1e9, "the sparsity");
  expect(options.ranks >= 0 && options.ranks <= 1024, "the ranks");
  return 0;
} catch (const mnist::OptionError& error) {
  return tutti::fuzz::refused(error);
}
