// Has servers write checkpoints.
#include "ps/modes/saves.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

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

}  // namespace

bool Save::go_on() {
  if (!ask_if_due()) return false;
  const auto is_there = [](const Asked& asked) { return !asked || asked.is_answered(); };
  return std::ranges::all_of(asked_, is_there) && take();
}

void Save::wait() {
  while (true) {
    while (!ask_if_due()) wait_a_moment();
    if (take()) return;
  }
}

bool Save::ask_if_due() {
  if (asked_.empty() && std::chrono::steady_clock::now() < next_look_) return false;
  ask();
  return true;
}

void Save::ask() {
  const bool of_all = stage_ == Stage::parts;
  const RequestHeader header{.kind = of_all ? RequestKind::save : RequestKind::finish_save,
                             .flags = stage_ == Stage::discard ? kDiscard : std::uint8_t{0},
                             .count = std::ssize(folder_),
                             .round = number_};
  const int servers = of_all ? servers_.count() : 1;
  for (int server = static_cast<int>(asked_.size()); server < servers; ++server)
    asked_.push_back(servers_.ask(server, header, folder_));
}

bool Save::take() {
  for (int server = 0; server < std::ssize(asked_); ++server) {
    Asked& asked = asked_[static_cast<std::size_t>(server)];
    if (!asked) continue;  // taken before an interruption
    const Reply reply = asked.take();
    if (reply.header.outcome == Outcome::not_yet) is_done_ = false;
    if (reply.header.outcome == Outcome::done || reply.header.outcome == Outcome::not_yet) continue;
    const std::string text(reinterpret_cast<const char*>(reply.payload.data()),
                           reply.payload.size());
    if (!failure_) {
      failure_ = std::make_exception_ptr(
          SystemError(servers_.end(server).name.text + ": " + text, reply.header.number));
    }
  }
  asked_.clear();
  next_look_ = std::chrono::steady_clock::now() + kBetweenLooks;
  if (!std::exchange(is_done_, true)) return false;
  if (stage_ == Stage::discard) std::rethrow_exception(failure_);
  if (stage_ == Stage::publication && !failure_) return true;
  stage_ = failure_ ? Stage::discard : Stage::publication;
  ask();
  return false;
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

void Saves::go_on() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another thread waits for a checkpoint
  begin_running_if_due();
  or_log([&] { return running_ && running_->go_on(); });
}

bool Saves::begin_if_due() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  begin_running_if_due();
  or_log([&] {
    if (running_) running_->ask_if_due();
    return false;
  });
  return running_.has_value();
}

void Saves::finish() {
  const std::unique_lock<std::mutex> lock = this->lock();
  begin_running_if_due();
  finish_running();
}

void Saves::begin_running_if_due() {
  if (!running_ && news_.take_save_due()) running_.emplace(servers_, begun_++, std::string_view());
}

template <class Action>
void Saves::or_log(const Action& action) {
  try {
    if (action()) running_.reset();
  } catch (const SystemError& error) {
    running_.reset();
    log(LogLevel::warn, std::string("no checkpoint was written: ") + error.what());
  } catch (const Error&) {
    running_.reset();
    throw;
  }
}

void Saves::finish_running() {
  or_log([&] {
    if (running_) running_->wait();
    return true;
  });
}

}  // namespace tutti::ps
