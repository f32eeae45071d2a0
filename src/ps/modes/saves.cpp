// Has servers write checkpoints.
#include "ps/modes/saves.hpp"

#include <cerrno>
#include <chrono>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps {
namespace {

RequestHeader request(RequestKind kind, std::uint8_t flags, std::int64_t number,
                      std::string_view folder) {
  return {.kind = kind, .flags = flags, .count = std::ssize(folder), .round = number};
}

constexpr std::chrono::milliseconds kBetweenLooks{10};

/** False: it is being written. A checkpoint that could not be is refused with what the operating
 * system said. */
bool take(const Servers& servers, int server, Asked& asked) {
  const Reply reply = asked.take();
  if (reply.header.outcome == Outcome::done) return reply.payload.empty();
  const auto* const text = reinterpret_cast<const char*>(reply.payload.data());
  throw SystemError(servers.end(server).name.text + ": " + std::string(text, reply.payload.size()),
                    EIO);
}

}  // namespace

void Saves::save(std::string_view folder) {
  finish();
  const std::lock_guard lock(mutex_);
  const std::int64_t number = begun_++;
  ask_all(number, folder);
  publish(number, folder);
}

void Saves::ask_all(std::int64_t number, std::string_view folder) {
  // Each look is answered at once: the writing may well take longer than a server has to answer.
  std::vector<int> writing(static_cast<std::size_t>(servers_.count()));
  std::iota(writing.begin(), writing.end(), 0);
  std::exception_ptr failure;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
    }
  };
  while (!writing.empty()) {
    std::vector<Asked> asked(writing.size());
    std::vector<int> left;
    for (std::size_t i = 0; i < writing.size(); ++i) {
      attempt([&] {
        asked[i] = servers_.ask(writing[i],
                                request(RequestKind::save, kWhenWritten, number, folder), folder);
      });
    }
    for (std::size_t i = 0; i < writing.size(); ++i) {
      attempt([&] {
        if (asked[i] && !take(servers_, writing[i], asked[i])) left.push_back(writing[i]);
      });
    }
    writing.swap(left);
    InterruptCheck::poll();
    if (!writing.empty()) std::this_thread::sleep_for(kBetweenLooks);
  }
  if (failure) std::rethrow_exception(failure);
}

void Saves::publish(std::int64_t number, std::string_view folder) {
  Asked asked = servers_.ask(0, request(RequestKind::finish_save, 0, number, folder), folder);
  take(servers_, 0, asked);
}

void Saves::save_if_due() {
  if (!news_.take_save_due()) return;
  try {
    save({});
  } catch (const SystemError& error) {
    log(LogLevel::warn, std::string("no checkpoint was written: ") + error.what());
  }
}

void Saves::go_on() {
  const std::lock_guard lock(mutex_);
  if (publishing_) {
    if (!publishing_.is_answered()) return;
    take_published();
  }
  if (running_) {
    const News::Saved saved = news_.saved(*running_);
    if (saved == News::Saved::not_yet) return;
    const std::int64_t number = *std::exchange(running_, std::nullopt);
    if (saved == News::Saved::failed) return;
    publishing_ = servers_.ask(0, request(RequestKind::finish_save, 0, number, {}));
    return;
  }
  if (!news_.take_save_due()) return;
  running_ = begun_++;
  for (int server = 0; server < servers_.count(); ++server) {
    const Asked forgotten = servers_.ask(server, request(RequestKind::save, 0, *running_, {}));
  }
}

void Saves::take_published() {
  try {
    Asked asked = std::move(publishing_);
    take(servers_, 0, asked);
  } catch (const SystemError& error) {
    log(LogLevel::warn, std::string("no checkpoint was written: ") + error.what());
  }
}

void Saves::finish() {
  const std::lock_guard lock(mutex_);
  if (publishing_) take_published();
  if (!running_) return;
  const std::int64_t number = *std::exchange(running_, std::nullopt);
  try {
    ask_all(number, {});
    publish(number, {});
  } catch (const Error& error) {
    log(LogLevel::warn, std::string("no checkpoint was written: ") + error.what());
  }
}

}  // namespace tutti::ps
