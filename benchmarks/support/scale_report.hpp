// What scale_sim has found: a table, and lines of JSON.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "support/scale_options.hpp"
#include "tutti/output_file.hpp"

namespace tutti::bench {

struct ScaleRow {
  std::string what;
  std::int64_t bytes;
  double us;
  double bound_us;
  double messages_per_rank;
  double bytes_per_rank;
  int ranks;
  double state_per_process;  ///< of the heap, in bytes, with what the call has in memory
  bool checked = false;
};

class ScaleReport {
 public:
  /** Throws as OutputFile if the file cannot be made. */
  explicit ScaleReport(const ScaleOptions& options) : hosts_(options.hosts) {
    if (!options.json.empty()) {
      json_.emplace(options.json);
      json_->commit();  // lines can be read as they come
    }
    std::printf("%d hosts of %d ranks, %g us, %g Gbit/s\n%-22s %12s %14s %14s %14s %16s %14s\n",
                options.hosts, options.ranks, options.latency_us, options.gbps, "what", "bytes",
                "us", "bound us", "messages/rank", "bytes/rank", "state/process");
  }

  void add(const ScaleRow& row) {
    std::printf("%-22s %12lld %14.1f %14.1f %14.1f %16.0f %14.0f\n", row.what.c_str(),
                static_cast<long long>(row.bytes), row.us, row.bound_us, row.messages_per_rank,
                row.bytes_per_rank, row.state_per_process);
    std::fflush(stdout);
    if (!json_) return;
    std::array<char, 512> line{};
    std::snprintf(line.data(), line.size(),
                  R"({"what": "%s", "hosts": %d, "ranks": %d, "bytes": %lld, "us": %.3f, )"
                  R"("bound_us": %.3f, "messages_per_rank": %.3f, "bytes_per_rank": %.1f, )"
                  "\"state_per_process\": %.0f, \"checked\": %s}\n",
                  row.what.c_str(), hosts_, row.ranks, static_cast<long long>(row.bytes), row.us,
                  row.bound_us, row.messages_per_rank, row.bytes_per_rank, row.state_per_process,
                  row.checked ? "true" : "false");
    json_->write(line.data());
  }

 private:
  int hosts_;
  std::optional<OutputFile> json_;
};

}  // namespace tutti::bench
