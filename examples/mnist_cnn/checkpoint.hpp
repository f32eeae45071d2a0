// Checkpoints: everything that a training needs to go on as if it had never stopped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cnn.hpp"
#include "tutti/optimizer.hpp"

namespace mnist {

/** A checkpoint cannot be read, or is not of this model; the message names the file. */
class CheckpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/**
 * The shuffling is a function of seed and epoch (training_order), so the two numbers stand for
 * the state of all random numbers.
 */
struct Checkpoint {
  std::uint64_t seed = 0;
  std::int64_t epochs_done = 0;
  std::vector<std::vector<float>> parameters;     ///< in the order of Cnn::parameters()
  std::vector<tutti::OptimizerState> optimizers;  ///< of each rank, or one if all are alike
};

/** A state as bytes, to be sent to another rank, and back. Throws CheckpointError if damaged. */
std::vector<std::byte> pack_state(const tutti::OptimizerState& state);
tutti::OptimizerState unpack_state(std::span<const std::byte> bytes);

/** Replaces `path` by the checkpoint, as a whole. Throws as tutti::OutputFile does. */
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint,
                     std::span<const NamedParameter> model);

/** The bytes of a file. Throws CheckpointError. */
std::vector<std::byte> read_file(const std::filesystem::path& path);

/**
 * Understands what save_checkpoint() wrote. `path` is for messages only. Throws CheckpointError
 * if the bytes are not a checkpoint, are damaged, or belong to another model than `model`.
 */
Checkpoint parse_checkpoint(std::span<const std::byte> bytes, const std::filesystem::path& path,
                            std::span<const NamedParameter> model);

}  // namespace mnist
