// Lets batches wait, and merges them, while a server is behind.
#include "ps/modes/send_queue.hpp"

#include <new>
#include <utility>

#include "base/finally.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {

SendQueue::SendQueue(Servers& servers, News& news, int server, const Limits& limits)
    : servers_(servers), news_(news), server_(server), limits_(limits) {}

template <class Action>
void SendQueue::or_give_up(const Action& action) {
  try {
    action();
  } catch (const PeerLost&) {
    waiting_.clear();
    unanswered_.clear();
    refused_.reset();
    waiting_batches_ = 0;
    unflushed_ = unchecked_ = false;
    throw;
  }
}

void SendQueue::put(Batch& batch, std::int64_t round) {
  const Finally taken([&] { batch.clear(); });
  unchecked_ = true;
  or_give_up([&] {
    send_or_enqueue(batch, round);
    go_on();
    while (waiting_batches_ > limits_.waiting) {
      take_answer();
      go_on();
    }
  });
}

void SendQueue::keep(Batch& batch, std::int64_t round) {
  const Finally taken([&] { batch.clear(); });
  enqueue(batch, round);
}

void SendQueue::flush() {
  if (!unflushed_) return;
  unchecked_ = true;
  or_give_up([&] {
    while (!waiting_.empty() || !unanswered_.empty()) {
      if (!unanswered_.empty()) take_answer();
      go_on();
    }
    unflushed_ = false;
  });
}

void SendQueue::check() {
  if (!std::exchange(unchecked_, false)) return;
  if (const std::optional<Reply> refused = std::exchange(refused_, std::nullopt))
    servers_.throw_unless_done(server_, *refused);
  servers_.throw_refusal(server_);
}

void SendQueue::finish(FirstError& errors) {
  const auto left = [this] { return 2 * waiting_.size() + unanswered_.size(); };
  while (unflushed_) {
    const std::size_t before = left();
    const auto go_on_without_memory = [&] {
      if (left() < before) return;  // what has been answered has given memory back
      errors.keep_current();
      drop_first();
    };
    try {
      flush();
    } catch (const SystemError&) {
      go_on_without_memory();
    } catch (const std::bad_alloc&) {
      if (waiting_.empty()) throw;  // an answer cannot be taken: nothing can be dropped for that
      go_on_without_memory();
    } catch (const Error&) {
      errors.keep_current();
      if (left() == before) drop_first();
    }
  }
  errors.or_keep([&] { check(); });
}

void SendQueue::drop_first() {
  if (waiting_.empty()) return;
  waiting_batches_ -= waiting_.front().batch.batches();
  waiting_.pop_front();
}

void SendQueue::move_on() {
  if (waiting_.empty()) return;
  try {
    go_on();
  } catch (const Error&) {  // the next put() or flush() meets it again
  }
}

void SendQueue::send(Batch& batch, std::int64_t round) {
  unflushed_ = true;
  // Without room a send waits, and a wait may end in an exception: not in the middle of a batch.
  while (!unanswered_.empty() && !servers_.link(server_).has_room(batch.requests() + 1))
    take_answer();
  batch.send(servers_, round);
  unanswered_.push_back(servers_.ask(server_, {.kind = RequestKind::end_round, .round = round}));
}

void SendQueue::send_or_enqueue(Batch& batch, std::int64_t round) {
  try {
    take_answers();
    if (waiting_.empty() && unanswered_.size() < kUnanswered) return send(batch, round);
  } catch (const PeerLost&) {
    throw;
  } catch (...) {
    enqueue(batch, round);  // the end of its round at least
    throw;
  }
  enqueue(batch, round);
}

void SendQueue::enqueue(Batch& batch, std::int64_t round) {
  const std::int64_t batches = batch.batches();
  unflushed_ = true;
  if (!waiting_.empty() && batch.empty()) {
    waiting_.back().round = round;
  } else if (!waiting_.empty() && waiting_.back().batch.batches() < limits_.merged) {
    waiting_.back().batch.add(batch);
    waiting_.back().round = round;
    ++servers_.counters().merged;
  } else {
    Batch fresh = spare_.empty() ? Batch(servers_, server_) : std::move(spare_.back());
    if (!spare_.empty()) spare_.pop_back();
    waiting_.push_back({std::exchange(batch, std::move(fresh)), round});
  }
  waiting_batches_ += batches;
}

void SendQueue::go_on() {
  take_answers();
  while (!waiting_.empty() && unanswered_.size() < kUnanswered) {
    Waiting& next = waiting_.front();
    send(next.batch, next.round);  // or it waits on
    waiting_batches_ -= next.batch.batches();
    next.batch.clear();
    spare_.push_back(std::move(next.batch));
    waiting_.pop_front();
  }
}

void SendQueue::take_answers() {
  while (!unanswered_.empty() && unanswered_.front().is_answered()) take_answer();
}

void SendQueue::take_answer() {
  Reply reply = unanswered_.front().take();  // if that is interrupted, it is the next again
  unanswered_.pop_front();
  if (reply.header.outcome == Outcome::done) return news_.hear(server_, reply);
  if (!refused_) refused_ = std::move(reply);
}

}  // namespace tutti::ps
