// Refuses a table that makes no sense by its name, the field and its value.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {
namespace {

constexpr std::int64_t kMostColumns = std::int64_t{1} << 20U;

/** The fields of what `owner` has: "table 'item'". Their names are those of C++ and of Python. */
class FieldCheck {
 public:
  explicit FieldCheck(std::string owner) : owner_(std::move(owner)) {}

  void operator()(const Sgd& rule) const { rate("lr of Sgd", rule.lr); }
  void operator()(const Momentum& rule) const {
    rate("lr of Momentum", rule.lr);
    rate("momentum of Momentum", rule.momentum);
    if (rule.nesterov && rule.momentum == 0.0F) {
      wrong("nesterov of Momentum", "true", "needs a momentum, which is 0");
    }
  }
  void operator()(const Adagrad& rule) const {
    rate("lr of Adagrad", rule.lr);
    rate("eps of Adagrad", rule.eps);
    rate("initial_accumulator of Adagrad", rule.initial_accumulator);
  }
  void operator()(const Adam& rule) const {
    rate("lr of Adam", rule.lr);
    below_one("beta1 of Adam", rule.beta1);
    below_one("beta2 of Adam", rule.beta2);
    rate("eps of Adam", rule.eps);
  }

  void operator()(const Constant& initial) const { finite("value of Constant", initial.value); }
  void operator()(const Uniform& initial) const {
    finite("low of Uniform", initial.low);
    finite("high of Uniform", initial.high);
    finite("high - low of Uniform", initial.high - initial.low);
    if (initial.high < initial.low) {
      wrong("high of Uniform", number_text(initial.high),
            "must not be less than low, which is " + number_text(initial.low));
    }
  }
  void operator()(const Normal& initial) const {
    finite("mean of Normal", initial.mean);
    rate("deviation of Normal", initial.deviation);
  }

  void operator()(const AdmitAll& /*entry*/) const {}
  void operator()(const AdmitProbability& entry) const {
    if (entry.probability >= 0.0 && entry.probability <= 1.0) return;
    wrong("probability of the entry rule", number_text(entry.probability), "must be from 0 to 1");
  }
  void operator()(const AdmitCount& entry) const {
    if (entry.count >= 1) return;
    wrong("count of the entry rule", std::to_string(entry.count), "must be at least 1");
  }
  void operator()(const AdmitShowClick& entry) const {
    rate("show_coefficient of the entry rule", entry.show_coefficient);
    rate("click_coefficient of the entry rule", entry.click_coefficient);
    rate("threshold of the entry rule", entry.threshold);
  }

  void dimensions(const TableSpec& spec) const {
    if (spec.dim < 1 || spec.dim > kMostColumns) {
      wrong("dim", std::to_string(spec.dim), "must be from 1 to " + std::to_string(kMostColumns));
    }
    not_negative("dict_size", spec.dict_size);
  }
  void operator()(const Eviction& eviction) const {
    not_negative("max_age of the eviction", eviction.max_age);
    not_negative("max_bytes of the eviction", eviction.max_bytes);
    rate("min_score of the eviction", eviction.min_score);
    if (!(eviction.decay >= 0.0F && eviction.decay <= 1.0F)) {
      wrong("decay of the eviction", number_text(eviction.decay), "must be from 0 to 1");
    }
    if (eviction.every < 1) {
      wrong("every of the eviction", std::to_string(eviction.every), "must be at least 1");
    }
  }

 private:
  [[noreturn]] void wrong(const char* field, const std::string& value,
                          const std::string& what) const {
    refuse(owner_, ": ", field, " is ", value, ", but ", what);
  }
  void finite(const char* field, float value) const {
    if (!std::isfinite(value)) wrong(field, number_text(value), "must be finite");
  }
  void rate(const char* field, float value) const {
    if (std::isfinite(value) && value >= 0.0F) return;
    wrong(field, number_text(value), "must be finite and not negative");
  }
  void below_one(const char* field, float value) const {
    if (value >= 0.0F && value < 1.0F) return;
    wrong(field, number_text(value), "must be at least 0 and less than 1");
  }
  void not_negative(const char* field, std::int64_t value) const {
    if (value < 0) wrong(field, std::to_string(value), "must not be negative");
  }

  std::string owner_;
};

}  // namespace

void check(const TableSpec& spec) {
  if (spec.name.empty()) refuse("TableSpec::name is empty");
  if (const auto end = spec.name.find('\n'); end != std::string::npos) {  // terms are lines
    refuse("TableSpec::name has a line break, behind '", spec.name.substr(0, end), "'");
  }
  const FieldCheck fields("table '" + spec.name + "'");
  fields.dimensions(spec);
  std::visit(fields, spec.rule);
  std::visit(fields, spec.initial);
  std::visit(fields, spec.entry);
  fields(spec.eviction);
}

void check(const Rule& rule, const std::string& owner) { std::visit(FieldCheck(owner), rule); }

}  // namespace tutti::ps
