// What the modes of a worker have in common.
#include "ps/modes/worker_mode.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <variant>

#include "base/refuse.hpp"

namespace tutti::ps {

void WorkerMode::ask_all(EndOfRound& end) {
  for (int server = static_cast<int>(end.asked.size()); server < servers_.count(); ++server) {
    Asked asked;
    end.errors.or_keep([&] { asked = servers_.ask(server, end.header); });
    end.asked.push_back(std::move(asked));
  }
}

bool WorkerMode::is_answered(const EndOfRound& end) {
  return std::ranges::all_of(end.asked,
                             [](const Asked& asked) { return !asked || asked.is_answered(); });
}

void WorkerMode::take_end_round(EndOfRound& end, bool is_last) {
  const Clock::time_point begin = Clock::now();
  for (int server = 0; server < servers_.count(); ++server)
    end.errors.or_keep([&] { take_end_round(end, server, is_last, begin); });
  end.errors.throw_kept();
}

void WorkerMode::take_end_round(EndOfRound& end, int server, bool is_last,
                                Clock::time_point begin) {
  const auto waited = [&] {
    return std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - begin);
  };
  Asked& asked = end.asked[static_cast<std::size_t>(server)];
  if (!asked) return;  // taken before an interruption
  // Who is told of a loss waits for no other answer: others may be lost as well, and found out by
  // nothing but a deadline.
  if (end.errors.knows_of_loss() && !asked.is_answered()) return;
  Reply reply = asked.take();
  while (reply.header.outcome == Outcome::not_yet && is_last && !end.errors.knows_of_loss()) {
    servers_.require_presence(waited());  // who saves may wait for a server that is gone
    asked = servers_.ask(server, end.header);
    reply = asked.take();
  }
  if (reply.header.outcome == Outcome::not_yet) return;  // this worker is further already
  // A worker that is missed, or was for long, may have waited itself for a server that is gone.
  if (reply.header.outcome == Outcome::lost_worker || waited() > kGraceOfServer)
    servers_.require_presence(waited());
  servers_.throw_unless_done(server, reply);
  news_.hear(server, reply);
  servers_.throw_refusal(server);
}

void WorkerMode::tell_end_round(const RequestHeader& header) {
  hear_end_rounds();
  ask_all(hear_later({header}));
}

void WorkerMode::hear_end_rounds() {
  for (; !unheard_.empty(); unheard_.pop_front()) {
    try {
      ask_all(unheard_.front());
      take_end_round(unheard_.front(), unheard_.size() == 1);
    } catch (const Error&) {
      unheard_.pop_front();
      throw;
    }
  }
}

void WorkerMode::hear_end_rounds(FirstError& errors) {
  while (!unheard_.empty()) errors.or_keep([&] { hear_end_rounds(); });
}

std::vector<Batch> empty_batches(const Servers& servers) {
  std::vector<Batch> batches;
  for (int server = 0; server < servers.count(); ++server) batches.emplace_back(servers, server);
  return batches;
}

OpenBatch::OpenBatch(const Servers& servers)
    : servers_(servers), parts_(empty_batches(servers)), memory_(servers) {}

void OpenBatch::add_rows(int table, const RowPush& push) {
  const TableSpec& spec = servers_.table(table);
  const IdSplit split(push.ids, spec.split, servers_.count(), spec.padding_idx);
  const std::lock_guard lock(mutex_);
  for (int server = 0; server < servers_.count(); ++server)
    parts_[static_cast<std::size_t>(server)].add_rows(table, push, split.share(server));
}

void OpenBatch::add_dense(int parameter, std::span<const float> gradient) {
  const std::lock_guard lock(mutex_);
  const std::span<const Servers::Piece> pieces = servers_.pieces(parameter);
  const auto part = [this](const Servers::Piece& piece) -> Batch& {
    return parts_[static_cast<std::size_t>(piece.server)];
  };
  const std::shared_ptr<PlacedGradient> placed = memory_.find(parameter, gradient.data());
  if (placed && !placed->is_free()) {
    refuse("push_dense: gradient is memory for that of ", servers_.parameter_name(parameter),
           " which has been pushed and servers may still read: gradient_memory() gives other");
  }
  if (placed && !part(pieces.front()).has(pieces.front().block)) {
    for (std::size_t i = 0; i < pieces.size(); ++i)
      part(pieces[i]).add_placed(pieces[i].block, {placed, i});
    return;
  }
  for (const Servers::Piece& piece : pieces) part(piece).reserve_for(piece.block);
  for (const Servers::Piece& piece : pieces)
    part(piece).add_dense(piece, gradient.data() + piece.in_parameter);
}

DenseGradient OpenBatch::gradient_memory(int parameter) {
  const std::lock_guard lock(mutex_);
  return memory_.of(parameter);
}

bool OpenBatch::empty() {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(parts_, &Batch::empty);
}

void OpenBatch::take(std::vector<Batch>& parts) {
  for (Batch& part : parts) part.clear();
  const std::lock_guard lock(mutex_);
  parts_.swap(parts);
}

std::unique_ptr<WorkerMode> make_worker_mode(const WorkerContext& context, const Mode& mode) {
  return std::visit([&](const auto& chosen) { return make_worker_mode(context, chosen); }, mode);
}

}  // namespace tutti::ps
