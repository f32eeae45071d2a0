// Rules, initial values, entry rules, eviction and modes as values of Python.
#include "ps/bindings.hpp"
#include "ps/record.hpp"
#include "tutti/ps/mode.hpp"
#include "tutti/ps/table.hpp"

namespace tutti::python {
namespace {

void bind_rules(py::module_& module) {
  bind_record(module, "Sgd", "An update rule: w -= lr g",
              Field{"lr", &ps::Sgd::lr, "The learning rate."});
  bind_record(module, "Momentum",
              "An update rule: m = momentum m + g; w -= lr (nesterov ? g + momentum m : m)",
              Field{"lr", &ps::Momentum::lr, "The learning rate."},
              Field{"momentum", &ps::Momentum::momentum, "How much of m is kept."},
              Field{"nesterov", &ps::Momentum::nesterov, "Whether updates look ahead."});
  bind_record(
      module, "Adagrad",
      "An update rule: v += g g; w -= lr g / (sqrt(v) + eps). row_wise, for tables: v is one "
      "number "
      "a row, v += mean(g g).",
      Field{"lr", &ps::Adagrad::lr, "The learning rate."},
      Field{"eps", &ps::Adagrad::eps, "Added to the divisor."},
      Field{"initial_accumulator", &ps::Adagrad::initial_accumulator, "What v begins with."},
      Field{"row_wise", &ps::Adagrad::row_wise, "Whether v is one number a row."});
  bind_record(module, "Adam",
              "An update rule: t += 1; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; "
              "w -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps). Each row has a t of "
              "its own.",
              Field{"lr", &ps::Adam::lr, "The learning rate."},
              Field{"beta1", &ps::Adam::beta1, "How much of m is kept."},
              Field{"beta2", &ps::Adam::beta2, "How much of v is kept."},
              Field{"eps", &ps::Adam::eps, "Added to the divisor."});
}

void bind_initial_values(py::module_& module) {
  bind_record(module, "Constant", "An initial value that all elements have.",
              Field{"value", &ps::Constant::value, "The value."});
  bind_record(module, "Uniform",
              "Initial values in [low, high), a function of the seed, the table, the id and the "
              "column alone.",
              Field{"low", &ps::Uniform::low, "The least."},
              Field{"high", &ps::Uniform::high, "What they stay below."});
  bind_record(module, "Normal",
              "Normally distributed initial values, a function of the seed, the table, the id and "
              "the column alone.",
              Field{"mean", &ps::Normal::mean, "Their mean."},
              Field{"deviation", &ps::Normal::deviation, "Their standard deviation."});
}

void bind_entry(py::module_& module) {
  bind_record<ps::AdmitAll>(module, "AdmitAll", "An entry rule: every id gets a row when pushed.");
  bind_record(module, "Probability",
              "An entry rule: a part of all ids gets rows, decided by a hash of (seed, table, id).",
              Field{"probability", &ps::AdmitProbability::probability, "Which part, from 0 to 1."});
  bind_record(module, "CountFilter",
              "An entry rule: an id gets a row when it is pushed so often, of pushes as they come "
              "to a server: batches that a worker has merged on the way count once, and so do in "
              "sync mode all workers of a round. Until then it takes 22 to 29 bytes of its server.",
              Field{"count", &ps::AdmitCount::count, "For the how manieth time."});
  bind_record(
      module, "ShowClick",
      "An entry rule: an id gets a row when show_coefficient * shows + click_coefficient * "
      "clicks reaches the threshold, with the shows and clicks that push() is given. Until then it "
      "takes 22 to 29 bytes of its server.",
      Field{"show_coefficient", &ps::AdmitShowClick::show_coefficient, "What a show counts."},
      Field{"click_coefficient", &ps::AdmitShowClick::click_coefficient, "What a click counts."},
      Field{"threshold", &ps::AdmitShowClick::threshold, "The score that admits an id."});
  bind_record(
      module, "Evict",
      "Which rows go again, each limit on its own; what is evicted reads as it did before "
      "its first push.",
      Field{"max_age", &ps::Eviction::max_age,
            "Steps of the server since a row's last push, or that of an id that an entry "
            "rule counts; 0: no limit."},
      Field{"max_bytes", &ps::Eviction::max_bytes,
            "Of memory, of all servers, without what an entry rule counts: those not pushed for "
            "longest go; 0: no limit."},
      Field{"min_score", &ps::Eviction::min_score,
            "Rows whose score, as in ShowClick, is below it go; 0: none do."},
      Field{"decay", &ps::Eviction::decay, "What scores are multiplied by."},
      Field{"every", &ps::Eviction::every, "After how many steps they are."});
}

void bind_modes(py::module_& module) {
  bind_record(module, "Sync",
              "A mode: every step() ends a round. Servers add the pushes of all workers in the "
              "order of their ranks, divide by the number of workers and apply that once, and then "
              "all go on: bit for bit what one worker with all batches does.",
              Field{"continue_after_loss", &ps::Sync::continue_after_loss,
                    "Whether the others go on when a worker is lost, dividing by the number of "
                    "those who live; otherwise step() raises PeerLost."});
  bind_record(
      module, "Async",
      "A mode: step() hands the batch over and returns. Servers apply pushes as they come, without "
      "dividing. While servers are behind, batches wait, and those that wait are merged: summed "
      "for Sgd, averaged for the other rules.",
      Field{"max_merge_var_num", &ps::Async::max_merge_var_num,
            "The most batches that are merged into a push."},
      Field{"send_queue_size", &ps::Async::send_queue_size,
            "The most batches that wait: then step() waits."},
      Field{"staleness", &ps::Async::staleness,
            "How many more steps than the slowest living worker this one may have ended before "
            "step() waits; None: any number."},
      Field{"divide_by_workers", &ps::Async::divide_by_workers,
            "Whether pushes are divided by the number of workers."});
  bind_record(module, "HalfAsync",
              "A mode: every merge_batches steps the batches are merged and pushed, and step() "
              "waits for that, but for no other worker.",
              Field{"merge_batches", &ps::HalfAsync::merge_batches, "So many steps."});
  bind_record(module, "Geo",
              "A mode: workers train copies of their own. Every push_steps steps, with x the copy, "
              "o what it was at the last exchange, T workers, and s the server's value: "
              "d = (x - o) / T; o += d; s += d; x += s - o; o = s. stop() pushes x - o whole.",
              Field{"push_steps", &ps::Geo::push_steps, "So many steps."});
}

}  // namespace

void bind_ps_records(py::module_& module) {
  bind_rules(module);
  bind_initial_values(module);
  bind_entry(module);
  bind_modes(module);
}

}  // namespace tutti::python
