// Writes a server's part of checkpoints.
#include "ps/saver.hpp"

#include <exception>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/refuse.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

/** A part that another job has left under the same name would be taken for this one's. */
std::string attempt_of_job(std::uint64_t job, const std::string& which) {
  return std::to_string(job) + "-" + which;
}

}  // namespace

Saver::Saver(SavePlan plan, std::function<ServerState()> state, int server, int servers,
             int workers)
    : plan_(std::move(plan)),
      state_(std::move(state)),
      server_(server),
      servers_(servers),
      done_(static_cast<std::size_t>(workers)),
      due_(Clock::now() + plan_.every) {}

std::string Saver::attempt_of(const Request& request) const {
  return attempt_of_job(plan_.job, "worker" + std::to_string(request.worker) + "-" +
                                       std::to_string(request.header.round));
}

std::string Saver::attempt_at_end() const { return attempt_of_job(plan_.job, "end"); }

std::string Saver::folder_of(const Request& request) const {
  const auto* const text = reinterpret_cast<const char*>(request.payload.data());
  std::string folder(text, request.payload.size());
  if (!folder.empty()) return folder;
  if (plan_.folder.empty()) refuse("save: the servers have no folder for checkpoints");
  return plan_.folder;
}

void Saver::begin(const Request& request) {
  const int worker = request.worker;
  const bool begun = running_ && running_->worker == worker;
  if (begun || done(worker).saves > request.header.round) return;
  const std::string folder = folder_of(request);
  if (running_) {
    fail(worker, folder, "a checkpoint is being written for another worker");
    return;
  }
  try {
    running_.emplace(Running{worker, folder,
                             PartWriter(state_(), folder, attempt_of(request), server_, servers_)});
  } catch (const std::exception& error) {  // memory and threads may be short, too
    fail(worker, folder, error.what());
  }
}

std::optional<Answer> Saver::result(const Request& request) const {
  const Done& done = this->done(request.worker);
  if (done.saves <= request.header.round) return std::nullopt;
  return done.last;
}

Answer Saver::publish(const Request& request) const {
  const std::string folder = folder_of(request);
  try {
    publish_checkpoint(folder, attempt_of(request), servers_);
  } catch (const std::exception& error) {
    log(LogLevel::warn, "no checkpoint " + folder + ": " + error.what());
    return Answer::with_text(Outcome::refused, error.what());
  }
  log(LogLevel::info, "checkpoint " + folder + " is there");
  return {};
}

void Saver::go_on() {
  if (!running_) return;
  const int worker = running_->worker;
  try {
    if (running_->writer.is_busy() || running_->writer.next()) return;
    running_.reset();
    done(worker) = {done(worker).saves + 1, {}};
  } catch (const std::exception& error) {
    const std::string folder = running_->folder;
    running_.reset();
    fail(worker, folder, error.what());
  }
}

void Saver::fail(int worker, const std::string& folder, const std::string& reason) {
  log(LogLevel::warn,
      "server " + std::to_string(server_) + ": no checkpoint " + folder + ": " + reason);
  done(worker) = {done(worker).saves + 1, Answer::with_text(Outcome::refused, reason)};
}

void Saver::forget(int worker) {
  if (running_ && running_->worker == worker) running_.reset();
}

bool Saver::take_due() {
  if (server_ != 0 || plan_.every.count() == 0 || plan_.folder.empty()) return false;
  if (running_ || Clock::now() < due_) return false;
  due_ = Clock::now() + plan_.every;
  return true;
}

void Saver::report(int worker, RoundReply& reply) const {
  reply.saved = done(worker).saves;
  reply.save_failed = done(worker).last.outcome == Outcome::done ? 0 : 1;
}

void Saver::save_at_end(std::chrono::milliseconds timeout) {
  if (!plan_.at_end || plan_.folder.empty()) return;
  running_.reset();
  const std::string attempt = attempt_at_end();
  PartWriter writer(state_(), plan_.folder, attempt, server_, servers_);
  while (writer.next()) {
  }
  if (server_ != 0) return;
  // The others have lost their workers when this one has, and nothing but their files tells of
  // them.
  Deadline deadline(timeout);
  while (!parts_finished(plan_.folder, attempt, servers_)) {
    if (deadline.expired()) {
      throw DeadlineExceeded("checkpoint " + plan_.folder + ": not all of " +
                             std::to_string(servers_) +
                             " servers have written their parts within " + seconds_text(timeout));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  publish_checkpoint(plan_.folder, attempt, servers_);
}

}  // namespace tutti::ps
