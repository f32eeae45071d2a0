// Prints what was measured of a table, and writes it as lines of JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "ps/pauses.hpp"

namespace tutti::bench {

class Report {
 public:
  Report(std::int64_t rows, std::int64_t dim, const std::string& json)
      : rows_(rows), dim_(dim), json_(json) {}

  void rate(const std::string& what, double rows_per_s, double limit, bool checked) {
    std::printf("%-24s %8.2f M rows/s", what.c_str(), rows_per_s / 1e6);
    if (limit > 0) std::printf("  %.2f of %.2f", rows_per_s / limit, limit / 1e6);
    std::printf("%s\n", checked ? "" : "  WRONG");
    std::fflush(stdout);
    json_ << "{\"what\": \"" << what << "\", \"peer\": \"own\", \"rows\": " << rows_
          << ", \"dim\": " << dim_ << ", \"rows_per_s\": " << rows_per_s
          << ", \"limit_rows_per_s\": " << limit << ", \"checked\": " << checked << "}\n";
    right_ = right_ && checked;
  }
  void number(const std::string& what, double value, const char* unit, bool checked) {
    std::printf("%-24s %8.3f %s%s\n", what.c_str(), value, unit, checked ? "" : "  WRONG");
    std::fflush(stdout);
    json_ << "{\"what\": \"" << what << "\", \"peer\": \"own\", \"rows\": " << rows_
          << ", \"dim\": " << dim_ << ", \"" << unit << "\": " << value
          << ", \"checked\": " << checked << "}\n";
    right_ = right_ && checked;
  }
  void pauses(const std::string& of, const Pauses& pauses, bool right) {
    number("longest_" + of, pauses.longest * 1e3, "ms", right);
    number("work_of_longest_" + of, pauses.work_of_longest * 1e3, "ms", right);
    number("most_work_of_" + of, pauses.most_work * 1e3, "ms", right);
    number("seldom_longer_" + of, pauses.seldom * 1e3, "ms", right);
  }
  bool right() const { return right_; }

 private:
  std::int64_t rows_;
  std::int64_t dim_;
  std::ofstream json_;
  bool right_ = true;
};

}  // namespace tutti::bench
