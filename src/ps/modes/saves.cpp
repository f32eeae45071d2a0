// Has servers write checkpoints.
#include "ps/modes/saves.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/finally.hpp"
#include "base/log.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{10};

void wait_a_moment() {
  InterruptCheck::poll();
  std::this_thread::sleep_for(kBetweenLooks);
}

/** What fails is logged: nobody has asked for this checkpoint. */
template <class Action>
void or_log(const Action& action) {
  try {
    action();
  } catch (const SystemError& error) {
    log(LogLevel::warn, std::string("no checkpoint was written: ") + error.what());
  }
}

}  // namespace

Save::Save(Servers& servers, std::int64_t number, std::string_view folder)
    : servers_(servers), number_(number), folder_(folder) {
  ask();
}

bool Save::go_on() {
  if (asked_.empty()) {
    if (std::chrono::steady_clock::now() >= next_look_) ask();
    return false;
  }
  return std::ranges::all_of(asked_, &Asked::is_answered) && take();
}

void Save::wait() {
  while (true) {
    if (asked_.empty()) {
      wait_a_moment();
      ask();
    }
    if (take()) return;
  }
}

void Save::ask() {
  const RequestHeader header{.kind = publishing_ ? RequestKind::finish_save : RequestKind::save,
                             .count = std::ssize(folder_),
                             .round = number_};
  const int servers = publishing_ ? 1 : servers_.count();
  for (int server = 0; server < servers; ++server)
    asked_.push_back(servers_.ask(server, header, folder_));
}

bool Save::take() {
  bool is_done = true;
  std::vector<Asked> asked = std::exchange(asked_, {});
  for (int server = 0; server < std::ssize(asked); ++server) {
    const Reply reply = asked[static_cast<std::size_t>(server)].take();
    if (reply.header.outcome == Outcome::not_yet) is_done = false;
    if (reply.header.outcome == Outcome::done || reply.header.outcome == Outcome::not_yet) continue;
    const std::string text(reinterpret_cast<const char*>(reply.payload.data()),
                           reply.payload.size());
    if (!failure_) {
      failure_ = std::make_exception_ptr(
          SystemError(servers_.end(server).name.text + ": " + text, reply.header.number));
    }
  }
  next_look_ = std::chrono::steady_clock::now() + kBetweenLooks;
  if (!is_done) return false;
  if (failure_) std::rethrow_exception(failure_);
  if (std::exchange(publishing_, true)) return true;
  ask();
  return false;
}

void Saves::Begun::wait_or_log() {
  or_log([&] { save_.wait(); });
}

std::unique_lock<std::mutex> Saves::lock() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  while (!lock && !lock.try_lock()) wait_a_moment();
  return lock;
}

Saves::Begun Saves::begin(std::string_view folder) {
  std::unique_lock<std::mutex> lock = this->lock();
  finish_running();
  return {std::move(lock), Save(servers_, begun_++, folder)};
}

std::optional<Saves::Begun> Saves::begin_if_due() {
  if (!news_.take_save_due()) return std::nullopt;
  return begin({});
}

void Saves::go_on() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another thread waits for a checkpoint
  if (!running_) {
    if (news_.take_save_due()) running_.emplace(servers_, begun_++, std::string_view());
    return;
  }
  bool is_done = true;  // also if it fails
  const Finally forget([&] {
    if (is_done) running_.reset();
  });
  or_log([&] { is_done = running_->go_on(); });
}

void Saves::finish() {
  const std::unique_lock<std::mutex> lock = this->lock();
  finish_running();
}

void Saves::finish_running() {
  if (!running_) return;
  const Finally forget([&] { running_.reset(); });
  or_log([&] { running_->wait(); });
}

}  // namespace tutti::ps
