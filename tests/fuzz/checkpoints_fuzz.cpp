// Fuzzes the example's checkpoint files.
#include <zlib.h>

#include <array>

#include "checkpoint.hpp"
#include "fuzz/fuzzer.hpp"
#include "support/folder.hpp"

namespace tutti::fuzz {
namespace {

/** A model of two small parameters. */
struct Model {
  std::array<float, 6> weights{};
  std::array<float, 2> bias{};

  std::vector<mnist::NamedParameter> parameters() { return {{"weights", weights}, {"bias", bias}}; }
};

mnist::Checkpoint checkpoint(std::size_t ranks) {
  mnist::Checkpoint all{7, 3, {{1, 2, 3, 4, 5, 6}, {7, 8}}, {}};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    all.optimizers.push_back({{{"momentum", {1, 2, 3, 4, 5, 6, 7, 8}}}, {{"steps", 9.0}}});
  }
  return all;
}

/** The bytes that are written of it. */
Input file_of(const mnist::Checkpoint& content) {
  Model model;
  const test::Folder folder;
  const std::filesystem::path path = folder / "file";
  mnist::save_checkpoint(path, content, model.parameters());
  const std::vector<std::byte> bytes = mnist::read_file(path);
  Input input(bytes.size());
  std::memcpy(input.data(), bytes.data(), bytes.size());
  return input;
}

}  // namespace

std::vector<Input> seeds() { return {file_of(checkpoint(1)), file_of(checkpoint(3))}; }

/** The checksum, which ends the file. */
void mend(Input& input) {
  std::uint32_t sum = 0;
  if (input.size() < sizeof sum) return;
  const std::size_t content = input.size() - sizeof sum;
  sum = static_cast<std::uint32_t>(crc32_z(0, input.data(), content));
  std::memcpy(&input[content], &sum, sizeof sum);
}

}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  using tutti::fuzz::expect;
  tutti::fuzz::Model model;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const mnist::Checkpoint read = mnist::parse_checkpoint(bytes, "the file", model.parameters());
  expect(read.parameters.size() == 2 && read.parameters[0].size() == model.weights.size() &&
             read.parameters[1].size() == model.bias.size(),
         "the parameters are not the model's");
  expect(!read.optimizers.empty(), "no state of an optimiser");
  expect(read.epochs_done >= 0, "the epochs done");
  return 0;
} catch (const mnist::CheckpointError& error) {
  return tutti::fuzz::refused(error, 27);  // names that it finds follow
}
