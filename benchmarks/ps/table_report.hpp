// Prints what was measured of a table, and writes it as lines of JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>

#include "base/text.hpp"
#include "ps/pauses.hpp"
#include "tutti/output_file.hpp"

namespace tutti::bench {

class Report {
 public:
  Report(std::int64_t rows, std::int64_t dim, const std::string& json) : rows_(rows), dim_(dim) {
    if (json.empty()) return;
    json_.emplace(json);
    json_->commit();
  }

  void rate(const std::string& what, double rows_per_s, double limit, bool checked) {
    std::printf("%-24s %8.2f M rows/s", what.c_str(), rows_per_s / 1e6);
    if (limit > 0) std::printf("  %.2f of %.2f", rows_per_s / limit, limit / 1e6);
    std::printf("%s\n", checked ? "" : "  WRONG");
    std::fflush(stdout);
    note(what,
         R"("rows_per_s": )" + number_text(rows_per_s) + R"(, "limit_rows_per_s": )" +
             number_text(limit),
         checked);
  }
  void number(const std::string& what, double value, const char* unit, bool checked) {
    std::printf("%-24s %8.3f %s%s\n", what.c_str(), value, unit, checked ? "" : "  WRONG");
    std::fflush(stdout);
    note(what, "\"" + std::string(unit) + "\": " + number_text(value), checked);
  }
  void pauses(const std::string& of, const Pauses& pauses, bool right) {
    number("longest_" + of, pauses.longest * 1e3, "ms", right);
    number("work_of_longest_" + of, pauses.work_of_longest * 1e3, "ms", right);
    number("most_work_of_" + of, pauses.most_work * 1e3, "ms", right);
    number("seldom_longer_" + of, pauses.seldom * 1e3, "ms", right);
  }
  bool right() const { return right_; }

 private:
  void note(const std::string& what, const std::string& figures, bool checked) {
    right_ = right_ && checked;
    if (!json_) return;
    std::ostringstream line;
    line << R"({"what": ")" << what << R"(", "peer": "own", "rows": )" << rows_ << R"(, "dim": )"
         << dim_ << ", " << figures << R"(, "checked": )" << (checked ? "true" : "false") << "}\n";
    json_->write(line.str());
  }

  std::int64_t rows_;
  std::int64_t dim_;
  std::optional<OutputFile> json_;
  bool right_ = true;
};

}  // namespace tutti::bench
