// The data set: MNIST's files, or digits generated on the spot, and how ranks share it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace mnist {

/** A data file is missing, damaged or not what it should be; the message names it. */
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/** Images of 28x28 pixels, one byte each, row after row, with a label from 0 to 9 each. */
struct Images {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
};

struct Data {
  Images train;
  Images test;
  std::string kind;    ///< "mnist" or "generated"
  std::string origin;  ///< the folder, or why digits were generated
};

/**
 * Reads one pair of IDX files, `images` and `labels`, plain or compressed by gzip. Throws
 * DataError if one is missing, truncated, too long, not IDX, of another image size, or holds a
 * label above 9, or if their counts differ.
 */
Images read_idx(const std::filesystem::path& images, const std::filesystem::path& labels);

/** Reads MNIST's four files, each with or without .gz, from `folder`. Throws DataError. */
Data read_mnist(const std::filesystem::path& folder);

/**
 * Reads from `folder`, or if that is empty from $TUTTI_MNIST_DIR, or if that is not set from
 * data/mnist if there is such a folder; else generates 60 000 and 10 000 digits from `seed`.
 * A place that was named but does not hold the data is an error. Throws DataError.
 */
Data load_data(const std::filesystem::path& folder, std::uint64_t seed);

/** Part of a data set: `size` elements from `first` on, beginning anew behind the last. */
struct Shard {
  std::int64_t first = 0;
  std::int64_t size = 0;
};

/**
 * The training images of a rank. All shards have the same size, so that all ranks have the same
 * number of batches; where the data do not divide, the last shard wraps around.
 */
Shard training_shard(std::int64_t total, int rank, int world_size);

/** The test images of a rank: each image belongs to exactly one rank. */
Shard evaluation_shard(std::int64_t total, int rank, int world_size);

/**
 * The images of this rank's shard in the order of one epoch: another one for each seed, epoch and
 * rank, and a function of these alone, so that a resumed training goes on with the same batches.
 */
std::vector<std::int64_t> training_order(std::int64_t total, int rank, int world_size,
                                         std::uint64_t seed, std::int64_t epoch);

/** Some images side by side. */
struct Batch {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
};

/** Makes `batch` the images with these indices; reuses its memory. */
void gather(const Images& images, std::span<const std::int64_t> indices, Batch& batch);

}  // namespace mnist
