// The example's checkpoints: what is saved comes back; anything else is refused.
#include "checkpoint.hpp"

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/folder.hpp"

namespace mnist {
namespace {

class MnistCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    checkpoint_.seed = 1234567890123456789U;
    checkpoint_.epochs_done = 3;
    checkpoint_.parameters = {{1.0F, -2.5F, 3.0F}, {0.125F}};
    checkpoint_.optimizers.resize(2);
    checkpoint_.optimizers[0].arrays["momentum"] = {4.0F, 5.0F, 6.0F, 7.0F};
    checkpoint_.optimizers[0].numbers["steps"] = 42.0;
    checkpoint_.optimizers[1].arrays["residual"] = {0.5F};
  }

  std::string refusal(const std::vector<std::byte>& bytes) {
    try {
      parse_checkpoint(bytes, path_, model_);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  tutti::test::Folder made_;
  std::filesystem::path folder_ = made_.path();
  std::filesystem::path path_ = folder_ / "model.ckpt";
  Checkpoint checkpoint_;
  std::vector<float> weight_ = std::vector<float>(3);
  std::vector<float> bias_ = std::vector<float>(1);
  std::vector<NamedParameter> model_{{"weight", weight_}, {"bias", bias_}};
};

TEST_F(MnistCheckpoint, ComesBackAsItWas) {
  save_checkpoint(path_, checkpoint_, model_);
  checkpoint_.epochs_done = 4;
  save_checkpoint(path_, checkpoint_, model_);  // replaces the first
  EXPECT_EQ(files(), 1U);
  const Checkpoint read = parse_checkpoint(read_file(path_), path_, model_);
  EXPECT_EQ(read.seed, checkpoint_.seed);
  EXPECT_EQ(read.epochs_done, 4);
  EXPECT_EQ(read.parameters, checkpoint_.parameters);
  ASSERT_EQ(read.optimizers.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(read.optimizers[rank].arrays, checkpoint_.optimizers[rank].arrays);
    EXPECT_EQ(read.optimizers[rank].numbers, checkpoint_.optimizers[rank].numbers);
  }
}

TEST_F(MnistCheckpoint, AStateTravelsAsBytes) {
  const std::vector<std::byte> packed = pack_state(checkpoint_.optimizers[0]);
  const tutti::OptimizerState read = unpack_state(packed);
  EXPECT_EQ(read.arrays, checkpoint_.optimizers[0].arrays);
  EXPECT_EQ(read.numbers, checkpoint_.optimizers[0].numbers);
  EXPECT_THROW(unpack_state(std::span(packed).first(packed.size() - 1)), CheckpointError);
  std::vector<std::byte> longer = packed;
  longer.push_back({});
  EXPECT_THROW(unpack_state(longer), CheckpointError);
}

TEST_F(MnistCheckpoint, EveryTruncationAndEveryFlippedByteIsRefused) {
  save_checkpoint(path_, checkpoint_, model_);
  const std::vector<std::byte> bytes = read_file(path_);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> part(bytes.begin(),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(refusal(part), "nothing was refused") << size;
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_NE(refusal(damaged), "nothing was refused") << i;
  }
}

TEST_F(MnistCheckpoint, NamesTheFileAndTheReason) {
  save_checkpoint(path_, checkpoint_, model_);
  const std::vector<std::byte> bytes = read_file(path_);
  const std::string text = "PK, something else";
  const auto foreign = std::as_bytes(std::span(text));
  EXPECT_EQ(refusal({foreign.begin(), foreign.end()}),
            path_.string() + ": not a checkpoint of this program");
  EXPECT_EQ(refusal({bytes.begin(), bytes.end() - 1}),
            path_.string() + ": truncated or damaged: the checksum differs");
  model_[1].name = "offset";
  EXPECT_EQ(
      refusal(bytes),
      path_.string() + ": of another model: weight[3] bias[1] instead of weight[3] offset[1]");
}

/** Puts `value` at `place`, and mends the checksum. */
template <class T>
std::vector<std::byte> changed(std::vector<std::byte> bytes, std::size_t place, T value) {
  std::memcpy(bytes.data() + place, &value, sizeof value);
  const std::size_t end = bytes.size() - sizeof(std::uint32_t);
  const auto sum =
      static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), end));
  std::memcpy(bytes.data() + end, &sum, sizeof sum);
  return bytes;
}

TEST_F(MnistCheckpoint, WithARightChecksumItIsCheckedForSense) {
  save_checkpoint(path_, checkpoint_, model_);
  const std::vector<std::byte> bytes = read_file(path_);
  const std::size_t names = 20;
  const std::size_t epochs = names + std::string("weight[3] bias[1]").size() + 8;
  const std::size_t parameter = epochs + 8;
  const std::size_t states = parameter + 8 + 12 + 8 + 4;
  const auto refused = [&](std::size_t place, auto value, const std::string& reason) {
    EXPECT_EQ(refusal(changed(bytes, place, value)), path_.string() + ": " + reason);
  };
  EXPECT_EQ(refusal(changed(bytes, epochs, std::int64_t{5})), "nothing was refused");
  refused(epochs, std::int64_t{-1}, "damaged: after -1 epochs");
  refused(epochs, std::int64_t{1'000'001}, "damaged: after 1000001 epochs");
  refused(parameter, std::uint64_t{1}, "damaged: weight has 1 elements");
  for (const std::uint64_t many :
       {std::uint64_t{100}, std::uint64_t{1} << 62U, ~std::uint64_t{0}}) {
    refused(parameter, many, "damaged: an array is longer than the file");
  }
  refused(states, std::uint64_t{0}, "damaged: it has no state");
  refused(states, std::uint64_t{1}, "damaged: it has more than it announces");
  refused(states, std::uint64_t{3}, "damaged: it ends early");
  refused(names, '\n', "of another model");

  // Names of one length, so that one can be made the other.
  checkpoint_.optimizers[0].numbers = {{"aaaa", 1.0}, {"bbbb", 2.0}};
  save_checkpoint(path_, checkpoint_, model_);
  std::vector<std::byte> twice = read_file(path_);
  const std::string text(reinterpret_cast<const char*>(twice.data()), twice.size());
  EXPECT_EQ(refusal(changed(twice, text.find("bbbb"), std::array{'a', 'a', 'a', 'a'})),
            path_.string() + ": damaged: a state has an entry twice");
}

TEST_F(MnistCheckpoint, WhatIsNoFileCannotBeRead) {
  EXPECT_THROW(read_file(folder_ / "none"), CheckpointError);
  EXPECT_THROW(read_file(folder_), CheckpointError);
}

}  // namespace
}  // namespace mnist
