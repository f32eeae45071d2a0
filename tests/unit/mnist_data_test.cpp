// The example's IDX reader, digit generator, shards, checkpoints and options.
#include "data.hpp"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "digits.hpp"
#include "support/folder.hpp"

namespace mnist {
namespace {

using Bytes = std::vector<std::uint8_t>;

class MnistFiles : public ::testing::Test {
 protected:
  static Bytes header(std::initializer_list<std::uint32_t> numbers) {
    Bytes bytes;
    for (const std::uint32_t number : numbers) {
      for (const unsigned shift : {24U, 16U, 8U, 0U}) {
        bytes.push_back(static_cast<std::uint8_t>(number >> shift));
      }
    }
    return bytes;
  }

  static Bytes image_file(std::uint32_t count) {
    Bytes bytes = header({0x803, count, 28, 28});
    for (std::uint32_t i = 0; i < count * 784; ++i) bytes.push_back(static_cast<std::uint8_t>(i));
    return bytes;
  }

  static Bytes label_file(std::uint32_t count) {
    Bytes bytes = header({0x801, count});
    for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(i % 10));
    return bytes;
  }

  std::filesystem::path write(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(folder_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return folder_ / name;
  }

  std::filesystem::path write_compressed(const std::string& name, const Bytes& bytes) const {
    gzFile file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return folder_ / name;
  }

  /** The message with which reading these two files fails. */
  std::string refusal(const Bytes& images, const Bytes& labels) const {
    const auto image_path = write("images", images);
    const auto label_path = write("labels", labels);
    return message([&] { read_idx(image_path, label_path); });
  }

  static std::string message(const std::function<void()>& read) {
    try {
      read();
    } catch (const DataError& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  tutti::test::Folder made_;
  std::filesystem::path folder_ = made_.path();
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(MnistFiles, ReadsPlainAndCompressedFiles) {
  const Images plain = read_idx(write("i", image_file(3)), write("l", label_file(3)));
  EXPECT_EQ(plain.count(), 3);
  EXPECT_EQ(plain.labels, (Bytes{0, 1, 2}));
  ASSERT_EQ(plain.pixels.size(), 3U * 784U);
  EXPECT_EQ(plain.pixels[784 + 5], static_cast<std::uint8_t>(784 + 5));

  const Images compressed =
      read_idx(write_compressed("i.gz", image_file(3)), write_compressed("l.gz", label_file(3)));
  EXPECT_EQ(compressed.pixels, plain.pixels);
  EXPECT_EQ(compressed.labels, plain.labels);
}

TEST_F(MnistFiles, FindsTheFourFilesOfAFolder) {
  write("train-images-idx3-ubyte", image_file(4));
  write_compressed("train-labels-idx1-ubyte.gz", label_file(4));
  write_compressed("t10k-images-idx3-ubyte.gz", image_file(2));
  const std::string missing = message([&] { read_mnist(folder_); });
  EXPECT_TRUE(contains(missing, "t10k-labels-idx1-ubyte")) << missing;

  write("t10k-labels-idx1-ubyte", label_file(2));
  const Data data = load_data(folder_, 0);
  EXPECT_EQ(data.train.count(), 4);
  EXPECT_EQ(data.test.count(), 2);
  EXPECT_EQ(data.kind, "mnist");

  const std::string no_folder = message([&] { load_data(folder_ / "nowhere", 0); });
  EXPECT_TRUE(contains(no_folder, "nowhere: no such folder")) << no_folder;
}

TEST_F(MnistFiles, TheVariableNamesTheFolder) {
  setenv("TUTTI_MNIST_DIR", (folder_ / "variable").c_str(), 1);
  const std::string refused = message([] { load_data({}, 0); });
  unsetenv("TUTTI_MNIST_DIR");
  EXPECT_TRUE(contains(refused, "variable: no such folder")) << refused;
}

TEST_F(MnistFiles, RefusesEachFaultByName) {
  const auto expect = [&](const Bytes& images, const Bytes& labels, const std::string& file,
                          const std::string& reason) {
    const std::string text = refusal(images, labels);
    EXPECT_TRUE(contains(text, (folder_ / file).string() + ": ")) << text;
    EXPECT_TRUE(contains(text, reason)) << text;
    EXPECT_FALSE(contains(text, "\n")) << text;
  };
  Bytes bytes = image_file(2);
  bytes.pop_back();
  expect(bytes, label_file(2), "images", "truncated");
  bytes.resize(3);
  expect(bytes, label_file(2), "images", "truncated");
  expect({}, label_file(2), "images", "truncated");
  bytes = image_file(2);
  bytes.push_back(0);
  expect(bytes, label_file(2), "images", "longer");
  expect(label_file(2), label_file(2), "images", "magic number is 2049, expected 2051");
  expect(image_file(2), image_file(2), "labels", "magic number is 2051, expected 2049");
  expect(header({0x803, 2, 27, 28}), label_file(2), "images", "number of rows is 27");
  expect(header({0x803, 2, 28, 32}), label_file(2), "images", "number of columns is 32");
  expect(header({0x803, 0, 28, 28}), label_file(2), "images", "count is 0");
  expect(header({0x803, 0xFFFFFFFF, 28, 28}), label_file(2), "images", "count is 4294967295");
  expect(image_file(2), label_file(3), "labels", "3 labels for the 2 images");
  bytes = label_file(2);
  bytes.back() = 10;
  expect(image_file(2), bytes, "labels", "label 1 is 10, expected 0 to 9");
  bytes = label_file(2);
  bytes.pop_back();
  expect(image_file(2), bytes, "labels", "truncated");
}

TEST_F(MnistFiles, RefusesHeadersThatAnnounceMoreThanThereIs) {
  const auto labels = write_compressed("labels.gz", label_file(10'000'000));
  Bytes images = header({0x803, 10'000'000, 28, 28});
  images.resize(10'000);
  const auto refusal_of = [&](const std::filesystem::path& path) {
    return message([&] { read_idx(path, labels); });
  };
  const auto plain = write("images", images);
  EXPECT_EQ(refusal_of(plain),
            plain.string() + ": truncated: 10000 bytes, but its header announces 7840000016");
  const auto compressed = write_compressed("images.gz", images);
  EXPECT_EQ(refusal_of(compressed), compressed.string() + ": truncated: " +
                                        std::to_string(std::filesystem::file_size(compressed)) +
                                        " compressed bytes, but its header announces 7840000016");
}

TEST_F(MnistFiles, RefusesDamagedCompression) {
  const auto labels = write("labels", label_file(50));
  const auto images = write_compressed("images.gz", image_file(50));
  std::filesystem::resize_file(images, std::filesystem::file_size(images) / 2);
  const std::string truncated = message([&] { read_idx(images, labels); });
  EXPECT_TRUE(contains(truncated, "truncated")) << truncated;

  write_compressed("images.gz", image_file(50));
  std::fstream file(images, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(100);
  file.write("damage", 6);
  file.close();
  const std::string damaged = message([&] { read_idx(images, labels); });
  EXPECT_TRUE(contains(damaged, "images.gz: ")) << damaged;

  const std::string missing = message([&] { read_idx(folder_ / "none", labels); });
  EXPECT_TRUE(contains(missing, "none: no such file")) << missing;
}

TEST(MnistDigits, DependOnSeedAndSetAlone) {
  const Images images = generate_digits(50, 1, 0);
  EXPECT_EQ(images.count(), 50);
  EXPECT_EQ(images.pixels.size(), 50U * 784U);
  EXPECT_EQ(images.pixels, generate_digits(50, 1, 0).pixels);
  EXPECT_NE(images.pixels, generate_digits(50, 2, 0).pixels);
  EXPECT_NE(images.pixels, generate_digits(50, 1, 1).pixels);
  // The first images do not depend on how many follow.
  const Bytes start(images.pixels.begin(), images.pixels.begin() + std::ptrdiff_t{10} * 784);
  EXPECT_EQ(generate_digits(10, 1, 0).pixels, start);
}

TEST(MnistDigits, HaveAllLabelsAndInk) {
  const Images images = generate_digits(1000, 0, 0);
  std::map<int, int> counts;
  for (const std::uint8_t label : images.labels) ++counts[label];
  EXPECT_EQ(counts.size(), 10U);
  for (const auto& [label, count] : counts) EXPECT_GT(count, 50) << label;
  for (std::ptrdiff_t i = 0; i < 1000; ++i) {
    const auto first = images.pixels.begin() + i * 784;
    EXPECT_GT(std::count_if(first, first + 784, [](std::uint8_t p) { return p > 100; }), 10) << i;
  }
}

TEST(MnistShards, TrainingShardsAreEqualAndCoverAll) {
  for (const int world_size : {1, 2, 3, 4, 7}) {
    std::set<std::int64_t> seen;
    for (int rank = 0; rank < world_size; ++rank) {
      const std::vector<std::int64_t> order = training_order(10, rank, world_size, 0, 0);
      EXPECT_EQ(static_cast<int>(order.size()), (10 + world_size - 1) / world_size);
      seen.insert(order.begin(), order.end());
    }
    EXPECT_EQ(seen.size(), 10U) << world_size;
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), 9);
  }
  // More ranks than images: each has one.
  EXPECT_EQ(training_order(2, 4, 5, 0, 0), std::vector<std::int64_t>{0});
}

TEST(MnistShards, EvaluationCountsEachImageOnce) {
  for (const int world_size : {1, 2, 3, 4, 7, 11}) {
    std::int64_t next = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      const Shard shard = evaluation_shard(10, rank, world_size);
      EXPECT_EQ(shard.first, next);
      EXPECT_GE(shard.size, 0);
      next += shard.size;
    }
    EXPECT_EQ(next, 10) << world_size;
  }
}

TEST(MnistShards, OrderDependsOnSeedEpochAndRank) {
  const auto relative = [](int rank, std::uint64_t seed, std::int64_t epoch) {
    std::vector<std::int64_t> order = training_order(1000, rank, 2, seed, epoch);
    for (std::int64_t& index : order) index -= rank * std::int64_t{500};
    return order;
  };
  const std::vector<std::int64_t> order = relative(0, 0, 0);
  EXPECT_EQ(order, relative(0, 0, 0));
  EXPECT_NE(order, relative(1, 0, 0));
  EXPECT_NE(order, relative(0, 1, 0));
  EXPECT_NE(order, relative(0, 0, 1));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST(MnistShards, GatherCopiesImagesAndLabels) {
  const Images images = generate_digits(5, 0, 0);
  Batch batch;
  const std::vector<std::int64_t> indices{4, 1};
  gather(images, indices, batch);
  EXPECT_EQ(batch.labels, (Bytes{images.labels[4], images.labels[1]}));
  EXPECT_TRUE(std::equal(batch.pixels.begin(), batch.pixels.begin() + 784,
                         images.pixels.begin() + std::ptrdiff_t{4} * 784));
  EXPECT_TRUE(
      std::equal(batch.pixels.begin() + 784, batch.pixels.end(), images.pixels.begin() + 784));
}

}  // namespace
}  // namespace mnist
