// What a table of embeddings is: its rows, how pushes change them, which rows there are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace tutti::ps {

// Update rules, element by element unless said otherwise, with PyTorch's formulas; g is the
// gradient of a row in one push. Each counts its own steps, so that a row that is seldom pushed is
// corrected for its own age.

/** w -= lr g */
struct Sgd {
  float lr = 0.01F;
};
/** m = momentum m + g; w -= lr (nesterov ? g + momentum m : m) */
struct Momentum {
  float lr = 0.01F;
  float momentum = 0.9F;
  bool nesterov = false;
};
/** v += g g (row_wise: v += mean(g g), one number a row); w -= lr g / (sqrt(v) + eps) */
struct Adagrad {
  float lr = 0.01F;
  float eps = 1e-10F;
  float initial_accumulator = 0.0F;
  bool row_wise = false;
};
/** t += 1; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g;
 * w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) */
struct Adam {
  float lr = 0.001F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float eps = 1e-8F;
};
using Rule = std::variant<Sgd, Momentum, Adagrad, Adam>;

// Initial values: a pure function of (seed, table, id, column), so that reading creates nothing,
// and neither the number of servers nor the order of pushes changes a result.

struct Constant {
  float value = 0.0F;
};
/** Uniform in [low, high). */
struct Uniform {
  float low = -0.01F;
  float high = 0.01F;
};
struct Normal {
  float mean = 0.0F;
  float deviation = 0.01F;
};
using Initial = std::variant<Constant, Uniform, Normal>;

// Which ids get a row. Pushes for an id that has none are dropped. AdmitCount and AdmitShowClick
// count them for each id, in 22 to 29 bytes of the server for each that waits for its row; an id
// begins at nothing when its row has been evicted, or when it was not pushed for max_age.

/** All. */
struct AdmitAll {};
/** A part of all ids, decided by a hash of (seed, table, id). */
struct AdmitProbability {
  double probability = 1.0;
};
/** Those pushed for the `count`-th time, of pushes as they come to a server: batches that a worker
 * has merged on the way count once for each id, and so do in sync mode all workers of a round. */
struct AdmitCount {
  std::int64_t count = 1;
};
/** Those whose show_coefficient * shows + click_coefficient * clicks has reached `threshold`. */
struct AdmitShowClick {
  float show_coefficient = 0.1F;
  float click_coefficient = 1.0F;
  float threshold = 1.0F;
};
using Entry = std::variant<AdmitAll, AdmitProbability, AdmitCount, AdmitShowClick>;

/** Which rows go again. What is evicted reads as it did before its first push. */
struct Eviction {
  /** In steps of the server since the row's last push: rounds in sync mode, otherwise batches of
   * any worker. 0: no limit. */
  std::int64_t max_age = 0;
  /** Of all servers, each an equal part: weights, the state of the rule and 16 bytes of history, in
   * whole huge pages of 2 MiB each, and up to 29 bytes a row of the index; not what an entry rule
   * counts. Those not pushed for longest go before a push makes others; only a push that has more
   * rows than that takes more, or a checkpoint that is loaded. 0: no limit; what cannot hold a row
   * on each server is refused. */
  std::int64_t max_bytes = 0;
  /** With shows and clicks: every `every` steps scores (as in AdmitShowClick) are multiplied by
   * `decay`, and rows whose score is below `min_score` go. 0: no such limit. */
  float min_score = 0.0F;
  float decay = 0.98F;
  std::int64_t every = 1000;
};

/** Which server has a row. */
enum class Split : std::uint8_t {
  hash,  ///< by a hash of the id
  mod,   ///< id modulo the number of servers, as Paddle does
};

/** Alike on all workers and servers. */
struct TableSpec {
  std::string name;
  std::int64_t dim = 0;  ///< f32 elements of a row
  Rule rule = Sgd{};
  Initial initial = Uniform{};
  Entry entry = AdmitAll{};
  Eviction eviction{};
  /** Ids are in [0, dict_size); others are refused before anything is sent. 0: any id. */
  std::int64_t dict_size = 0;
  /** Reads as zeros, and is never pushed. */
  std::optional<std::int64_t> padding_idx = std::nullopt;
  Split split = Split::hash;
  /** A lookup that meets a row in the middle of an update tries again, for a millisecond or more;
   * if it never was whole then, its row is read as it is, and counted (WorkerStats::torn_rows).
   * Otherwise only elements are whole. */
  bool consistent_rows = false;
};

}  // namespace tutti::ps
