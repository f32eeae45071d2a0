// tutti's parameter server: this process is the worker, and each fleet has a server of its own.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <string>

#include "ps/side.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::bench {
namespace {

constexpr float kRate = 0.5F;  // of the adaptive rules

/** A server in a process of its own, and this process as its worker. */
class OneServer {
 public:
  explicit OneServer(const ps::FleetOptions& options) {
    const UniqueId id = UniqueId::create();
    server_ = ::fork();
    if (server_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(serve(options, id));
    }
    world_ = std::make_unique<Communicator>(0, 2, id);
    fleet_ = std::make_unique<ps::Fleet>(ps::Placement::last_ranks(*world_, 1), options);
  }
  OneServer(const OneServer&) = delete;
  OneServer& operator=(const OneServer&) = delete;
  ~OneServer() {
    try {
      worker().stop();
    } catch (const Error& error) {
      std::fprintf(stderr, "ps_bench: %s\n", error.what());
    }
    fleet_.reset();
    world_.reset();
    ::waitpid(server_, nullptr, 0);
  }

  ps::Worker& worker() { return fleet_->worker(); }

 private:
  static int serve(const ps::FleetOptions& options, const UniqueId& id) {
    try {
      Communicator world(1, 2, id);
      ps::Fleet(ps::Placement::last_ranks(world, 1), options).server().run();
      return 0;
    } catch (const Error& error) {
      std::fprintf(stderr, "ps_bench: server: %s\n", error.what());
      return 1;
    }
  }

  pid_t server_ = 0;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<ps::Fleet> fleet_;
};

/** A push for every batch, so that the servers' work is as much as the worker's is; none of them
 * waits for another. */
ps::FleetOptions options_of(std::vector<ps::TableSpec> tables, std::int64_t dense) {
  ps::FleetOptions options;
  options.tables = std::move(tables);
  if (dense > 0) {
    options.dense.push_back(
        {"dense", {dense}, ps::Sgd{1.0F}, std::vector<float>(static_cast<std::size_t>(dense))});
  }
  ps::Async mode;
  mode.max_merge_var_num = 1;
  options.mode = mode;
  return options;
}

ps::TableSpec table_of(const PsLoad& load, ps::Rule rule) {
  ps::TableSpec spec;
  spec.name = "rows";
  spec.dim = load.dim;
  spec.rule = rule;
  spec.initial = ps::Constant{0.0F};
  return spec;
}

/** A weight whose gradient was always -1, after so many pushes. */
float after_pushes(const ps::Rule& rule, std::int64_t pushes) {
  float w = 0.0F;
  float v = 0.0F;
  float m = 0.0F;
  for (std::int64_t t = 1; t <= pushes; ++t) {
    if (std::holds_alternative<ps::Adagrad>(rule)) {
      v += 1.0F;
      w += kRate / std::sqrt(v);
    } else {
      const ps::Adam adam = std::get<ps::Adam>(rule);
      m = adam.beta1 * m + (1.0F - adam.beta1);
      v = adam.beta2 * v + (1.0F - adam.beta2);
      const auto step = static_cast<double>(t);
      const double corrected = v / (1.0 - std::pow(adam.beta2, step));
      w +=
          static_cast<float>(kRate * m / (1.0 - std::pow(adam.beta1, step)) / std::sqrt(corrected));
    }
  }
  return w;
}

/** A table of one rule with all rows. */
class RuleSide {
 public:
  RuleSide(const PsLoad& load, const ps::Rule& rule)
      : load_(load),
        rule_(rule),
        batches_(load),
        minus_(static_cast<std::size_t>(load.batch * load.dim), -1.0F),
        server_(options_of({table_of(load, rule)}, 0)) {
    fill();
  }

  ps::Worker& worker() { return server_.worker(); }

  PsTurn lookup() {
    std::vector<float> out(minus_.size());
    PsTurn turn;
    turn.us =
        time_calls(load_.seconds, [&] { worker().lookup(0, batches_.ids(batches_.next()), out); });
    turn.checked = holds(batches_.next());
    return turn;
  }

  /** With all their application. */
  PsTurn push() {
    std::int64_t last = 0;
    PsTurn turn;
    turn.us = time_calls(
        load_.seconds,
        [&] {
          last = batches_.next();
          worker().push(0, batches_.ids(last), minus_);
          worker().step();
          batches_.pushed(last);
        },
        [&] { worker().flush(); });
    turn.checked = holds(last);
    return turn;
  }

  /** A push of one row until it has been applied. */
  PsTurn ack(int calls, int idle_us) {
    const std::vector<std::int64_t> id{PsBatches::id_of(load_.rows)};
    const std::vector<float> gradient(static_cast<std::size_t>(load_.dim), -1.0F);
    std::vector<float> before(gradient.size());
    worker().lookup(0, id, before);
    PsTurn turn;
    turn.us = time_each(calls, idle_us, [&] {
      worker().push(0, id, gradient);
      worker().step();
      worker().flush();
    });
    std::vector<float> after(gradient.size());
    worker().lookup(0, id, after);
    turn.checked = after.back() == before.back() + static_cast<float>(calls);
    return turn;
  }

 private:
  bool is_sgd() const { return std::holds_alternative<ps::Sgd>(rule_); }

  /** Plain SGD begins with first_value(), adaptive rules with a push. */
  void fill() {
    std::vector<std::int64_t> ids;
    std::vector<float> gradients;
    for (std::int64_t row = 0; row < load_.rows; ++row) {
      ids.push_back(PsBatches::id_of(row));
      for (std::int64_t j = 0; j < load_.dim; ++j) {
        gradients.push_back(is_sgd() ? -PsBatches::first_value(row, j) : -1.0F);
      }
      if (static_cast<std::int64_t>(ids.size()) < load_.batch && row + 1 < load_.rows) continue;
      worker().push(0, ids, gradients);
      worker().step();
      ids.clear();
      gradients.clear();
    }
    worker().flush();
  }

  bool holds(std::int64_t number) {
    std::vector<float> out(minus_.size());
    worker().lookup(0, batches_.ids(number), out);
    if (is_sgd()) return batches_.holds(number, out);
    const float expected = after_pushes(rule_, batches_.pushes(number) + 1);
    for (const float value : out) {
      if (std::abs(value - expected) > 1e-4F * std::abs(expected)) return false;
    }
    return true;
  }

  PsLoad load_;
  ps::Rule rule_;
  PsBatches batches_;
  std::vector<float> minus_;
  OneServer server_;
};

class DenseSide {
 public:
  explicit DenseSide(const PsLoad& load, std::int64_t elements)
      : load_(load),
        minus_(static_cast<std::size_t>(elements), -1.0F),
        server_(options_of({}, elements)) {}

  PsTurn push() {
    const float before = value();
    int calls = 0;
    PsTurn turn;
    turn.us = time_calls(load_.seconds, [&] {
      server_.worker().push_dense(0, minus_);
      server_.worker().step();
      server_.worker().flush();
      ++calls;
    });
    turn.checked = value() == before + static_cast<float>(calls);
    return turn;
  }

  PsTurn pull() {
    std::vector<float> out(minus_.size());
    PsTurn turn;
    turn.us = time_calls(load_.seconds, [&] { server_.worker().pull_dense(0, out); });
    turn.checked = out.front() == out.back() && out.front() == value();
    return turn;
  }

 private:
  float value() {
    std::vector<float> out(minus_.size());
    server_.worker().pull_dense(0, out);
    return out.back();
  }

  PsLoad load_;
  std::vector<float> minus_;
  OneServer server_;
};

/** What a task needs is there when it is first asked for. */
class OwnSide final : public PsSide {
 public:
  explicit OwnSide(const PsLoad& load) : load_(load) {}

  std::optional<PsTurn> measure(std::string_view task) override {
    if (task == "push_adagrad") return made(adagrad_, ps::Adagrad{.lr = kRate}).push();
    if (task == "push_adam") return made(adam_, ps::Adam{.lr = kRate}).push();
    if (task.starts_with("dense")) {
      const bool is_large = task.ends_with("64M");
      DenseSide& dense = made(is_large ? large_ : small_, kDenseElements[is_large ? 1 : 0]);
      return task.starts_with("dense_push") ? dense.push() : dense.pull();
    }
    RuleSide& sgd = made(sgd_, ps::Sgd{1.0F});
    if (task == "lookup") return sgd.lookup();
    if (task == "push_sgd") return sgd.push();
    return task == "push_ack" ? sgd.ack(2000, 0) : sgd.ack(100, 5000);
  }

 private:
  template <class Side, class Argument>
  Side& made(std::optional<Side>& side, const Argument& argument) const {
    if (!side) side.emplace(load_, argument);
    return *side;
  }

  PsLoad load_;
  std::optional<RuleSide> sgd_;
  std::optional<RuleSide> adagrad_;
  std::optional<RuleSide> adam_;
  std::optional<DenseSide> small_;
  std::optional<DenseSide> large_;
};

}  // namespace

std::unique_ptr<PsSide> make_own_side(const PsLoad& load) {
  return std::make_unique<OwnSide>(load);
}

}  // namespace tutti::bench
