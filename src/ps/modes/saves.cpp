// Has servers write checkpoints.
#include "ps/modes/saves.hpp"

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

RequestHeader request(RequestKind kind, std::uint8_t flags, std::int64_t number,
                      std::string_view folder) {
  return {.kind = kind, .flags = flags, .count = std::ssize(folder), .round = number};
}

/** A checkpoint that could not be written is refused with what the operating system said. */
void take(const Servers& servers, int server, Asked& asked) {
  const Reply reply = asked.take();
  if (reply.header.outcome == Outcome::done) return;
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
  std::vector<Asked> asked;
  for (int server = 0; server < servers_.count(); ++server) {
    asked.push_back(
        servers_.ask(server, request(RequestKind::save, kWhenWritten, number, folder), folder));
  }
  for_each_server(servers_, [&](int server) {
    take(servers_, server, asked[static_cast<std::size_t>(server)]);
  });
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
  if (running_) {
    const News::Saved saved = news_.saved(*running_);
    if (saved == News::Saved::not_yet) return;
    const std::int64_t number = *std::exchange(running_, std::nullopt);
    if (saved == News::Saved::failed) return;
    const Asked forgotten = servers_.ask(0, request(RequestKind::finish_save, 0, number, {}));
    return;
  }
  if (!news_.take_save_due()) return;
  running_ = begun_++;
  for (int server = 0; server < servers_.count(); ++server) {
    const Asked forgotten = servers_.ask(server, request(RequestKind::save, 0, *running_, {}));
  }
}

void Saves::finish() {
  const std::lock_guard lock(mutex_);
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
