// Puts tables and rules into words.
#include "ps/table/describe.hpp"

#include <array>
#include <charconv>
#include <variant>

namespace tutti::ps {
namespace {

/** As few digits as tell the number from its neighbours. */
template <class Number>
std::string shortest_text(Number value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

/** A name and fields: "uniform: low -0.01, high 0.01". */
class Description {
 public:
  explicit Description(const char* name) : text_(name) {}

  Description& field(const char* name, const std::string& value) {
    text_ += (fields_++ == 0 ? ": " : ", ") + std::string(name) + " " + value;
    return *this;
  }
  Description& field(const char* name, float value) { return field(name, shortest_text(value)); }
  Description& field(const char* name, double value) { return field(name, shortest_text(value)); }
  Description& flag(const char* name, bool is_set) {
    if (is_set) text_ += (fields_++ == 0 ? ": " : ", ") + std::string(name);
    return *this;
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
  int fields_ = 0;
};

struct Describe {
  std::string operator()(const Sgd& rule) const {
    return Description("sgd").field("lr", rule.lr).text();
  }
  std::string operator()(const Momentum& rule) const {
    return Description("momentum")
        .field("lr", rule.lr)
        .field("momentum", rule.momentum)
        .flag("nesterov", rule.nesterov)
        .text();
  }
  std::string operator()(const Adagrad& rule) const {
    return Description("adagrad")
        .field("lr", rule.lr)
        .field("eps", rule.eps)
        .field("initial_accumulator", rule.initial_accumulator)
        .flag("row_wise", rule.row_wise)
        .text();
  }
  std::string operator()(const Adam& rule) const {
    return Description("adam")
        .field("lr", rule.lr)
        .field("beta1", rule.beta1)
        .field("beta2", rule.beta2)
        .field("eps", rule.eps)
        .text();
  }

  std::string operator()(const Constant& initial) const {
    return Description("constant").field("value", initial.value).text();
  }
  std::string operator()(const Uniform& initial) const {
    return Description("uniform").field("low", initial.low).field("high", initial.high).text();
  }
  std::string operator()(const Normal& initial) const {
    return Description("normal")
        .field("mean", initial.mean)
        .field("deviation", initial.deviation)
        .text();
  }

  std::string operator()(const AdmitAll& /*entry*/) const { return "all"; }
  std::string operator()(const AdmitProbability& entry) const {
    return Description("by probability").field("probability", entry.probability).text();
  }
  std::string operator()(const AdmitCount& entry) const {
    return Description("by count").field("count", std::to_string(entry.count)).text();
  }
  std::string operator()(const AdmitShowClick& entry) const {
    return Description("by show and click")
        .field("show_coefficient", entry.show_coefficient)
        .field("click_coefficient", entry.click_coefficient)
        .field("threshold", entry.threshold)
        .text();
  }
};

std::string describe(const Eviction& eviction) {
  return Description("eviction")
      .field("max_age", std::to_string(eviction.max_age))
      .field("max_bytes", std::to_string(eviction.max_bytes))
      .field("min_score", eviction.min_score)
      .field("decay", eviction.decay)
      .field("every", std::to_string(eviction.every))
      .text();
}

}  // namespace

std::string describe(const Rule& rule) { return std::visit(Describe{}, rule); }
std::string describe(const Initial& initial) { return std::visit(Describe{}, initial); }

std::string describe(const TableSpec& spec) {
  std::string text = "dim " + std::to_string(spec.dim) + "; rule " + describe(spec.rule) +
                     "; initial values " + describe(spec.initial) + "; entry " +
                     std::visit(Describe{}, spec.entry) + "; " + describe(spec.eviction) +
                     "; dict_size " + std::to_string(spec.dict_size);
  if (spec.padding_idx) text += "; padding_idx " + std::to_string(*spec.padding_idx);
  text += spec.split == Split::mod ? "; split mod" : "; split hash";
  if (spec.consistent_rows) text += "; consistent_rows";
  return text;
}

}  // namespace tutti::ps
