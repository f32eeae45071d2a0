// What the modes of a worker have in common.
#include "ps/modes/worker_mode.hpp"

#include <algorithm>
#include <chrono>
#include <variant>

namespace tutti::ps {

WorkerMode::EndOfRound WorkerMode::ask_end_round(std::int64_t round) {
  return ask_all({.kind = RequestKind::end_round, .round = round});
}

WorkerMode::EndOfRound WorkerMode::ask_for_slowest(std::int64_t round, std::int64_t staleness) {
  return ask_all({.kind = RequestKind::end_round,
                  .flags = kWaitForSlowest,
                  .count = staleness,
                  .round = round});
}

WorkerMode::EndOfRound WorkerMode::ask_all(const RequestHeader& header) {
  EndOfRound end{header};
  for (int server = 0; server < servers_.count(); ++server)
    end.asked.push_back(servers_.ask(server, header));
  return end;
}

void WorkerMode::take_end_round(EndOfRound& end) {
  const auto begin = std::chrono::steady_clock::now();
  const auto waited = [&] {
    return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  };
  for (int server = 0; server < servers_.count(); ++server) {
    Asked& asked = end.asked[static_cast<std::size_t>(server)];
    const Reply reply = servers_.wait(server, asked, end.header);
    // A worker that is missed, or was for long, may have waited itself for a server that is gone.
    if (reply.header.outcome == Outcome::lost_worker || waited() > kGraceOfServer)
      servers_.require_presence(waited());
    // Who is told of a loss waits for no other answer: others may be lost as well, and found out by
    // nothing but a deadline.
    servers_.throw_unless_done(server, reply);
    news_.hear(server, reply);
    servers_.throw_refusal(server);
  }
}

std::vector<Batch> empty_batches(const Servers& servers) {
  std::vector<Batch> batches;
  for (int server = 0; server < servers.count(); ++server) batches.emplace_back(servers, server);
  return batches;
}

OpenBatch::OpenBatch(const Servers& servers) : servers_(servers), parts_(empty_batches(servers)) {}

void OpenBatch::add_rows(int table, const RowPush& push) {
  const TableSpec& spec = servers_.table(table);
  const IdSplit split(push.ids, spec.split, servers_.count(), spec.padding_idx);
  const std::lock_guard lock(mutex_);
  for (int server = 0; server < servers_.count(); ++server)
    parts_[static_cast<std::size_t>(server)].add_rows(table, push, split.share(server));
}

void OpenBatch::add_dense(int parameter, std::span<const float> gradient) {
  const std::lock_guard lock(mutex_);
  for (const Servers::Piece& piece : servers_.pieces(parameter))
    parts_[static_cast<std::size_t>(piece.server)].reserve_dense();
  for (const Servers::Piece& piece : servers_.pieces(parameter)) {
    parts_[static_cast<std::size_t>(piece.server)].add_dense(piece,
                                                             gradient.data() + piece.in_parameter);
  }
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
