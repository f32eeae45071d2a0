// Writes a server's part of checkpoints.
#include "ps/saver.hpp"

#include <cerrno>
#include <exception>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/refuse.hpp"
#include "base/text.hpp"
#include "ps/files/manifest.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;

/** Between two looks at what takes its time. */
void wait_a_moment(milliseconds moment) {
  InterruptCheck::poll();
  std::this_thread::sleep_for(moment);
}

}  // namespace

Saver::Saver(SavePlan plan, std::function<ServerState()> state, int server, int servers,
             int workers)
    : plan_(std::move(plan)),
      state_(std::move(state)),
      server_(server),
      servers_(servers),
      done_(static_cast<std::size_t>(workers)),
      published_(static_cast<std::size_t>(workers)),
      due_(Clock::now() + plan_.every) {}

std::string Saver::attempt_of(const Request& request) const {
  return attempt_of_job(plan_.job, "worker" + std::to_string(request.worker) + "-" +
                                       std::to_string(request.header.round));
}

std::string Saver::attempt_at_end() const { return attempt_of_job(plan_.job, kLastAttempt); }

std::string Saver::folder_of(const Request& request) const {
  const auto* const text = reinterpret_cast<const char*>(request.payload.data());
  std::string folder(text, request.payload.size());
  if (!folder.empty()) return folder;
  if (plan_.folder.empty()) refuse("save: the servers have no folder for checkpoints");
  return plan_.folder;
}

Answer Saver::save(const Request& request) {
  const Id id = id_of(request);
  const Done& done = done_[static_cast<std::size_t>(id.worker)];
  if (done.number != id.number && !running_ && !is_publishing()) begin(request);
  if (done.number == id.number) return done.answer;
  // Another worker's comes first: one that was due, say.
  if (is_saving() && running_->id.worker == id.worker && running_->id != id) {
    forget(id.worker);  // that it has not waited for
  }
  return {.outcome = Outcome::not_yet};
}

void Saver::begin(const Request& request) {
  const std::string folder = folder_of(request);
  try {
    running_.emplace(Running{id_of(request), folder,
                             PartWriter(state_(), folder, attempt_of(request), server_, servers_)});
  } catch (const std::exception&) {  // memory and threads may be short, too
    end(id_of(request), failed(folder));
  }
}

Answer Saver::publish(const Request& request) {
  const Id id = id_of(request);
  const std::string folder = folder_of(request);
  const bool discards = (request.header.flags & kDiscard) != 0;
  take_published();
  const Published& published = published_[static_cast<std::size_t>(id.worker)];
  if (published.number == id.number && published.discards == discards) return published.answer;
  if (publication_) return {.outcome = Outcome::not_yet};
  try {
    const auto publish = [folder, discards, attempt = attempt_of(request), servers = servers_] {
      if (discards) return discard_attempt(folder, attempt);
      publish_checkpoint(folder, attempt, servers);
    };
    publication_.emplace(
        Publication{id, folder, discards, std::async(std::launch::async, publish)});
  } catch (const std::exception&) {  // threads may be short
    return failed(folder);
  }
  return {.outcome = Outcome::not_yet};
}

void Saver::take_published() {
  if (!publication_ || is_publishing()) return;
  Publication ended = std::move(*publication_);
  publication_.reset();
  Answer answer;
  try {
    ended.result.get();
    if (!ended.discards) log(LogLevel::info, "checkpoint " + ended.folder + " is there");
  } catch (const std::exception&) {
    answer = failed(ended.folder);
  }
  published_[static_cast<std::size_t>(ended.id.worker)] = {ended.id.number, ended.discards,
                                                           std::move(answer)};
}

bool Saver::is_publishing() const {
  return publication_ &&
         publication_->result.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::chrono::nanoseconds Saver::idle_limit() const {
  if (!running_) return std::chrono::hours(1);
  return std::chrono::milliseconds(running_->is_unwanted || running_->writer.is_busy() ? 1 : 0);
}

void Saver::go_on(bool requests_come) {
  // A piece takes a fraction of a millisecond.
  constexpr std::chrono::milliseconds kBetweenPieces{2};
  if (!running_) return;
  if (running_->is_unwanted) {
    if (running_->writer.has_stopped()) running_.reset();
    return;
  }
  const Clock::time_point now = Clock::now();
  if (requests_come && now < running_->next_piece) return;
  running_->next_piece = now + kBetweenPieces;
  try {
    if (running_->writer.is_busy() || running_->writer.next()) return;
    end(running_->id, {});
  } catch (const std::exception&) {
    end(running_->id, failed(running_->folder));
  }
  running_.reset();
}

void Saver::end(const Id& id, Answer answer) {
  done_[static_cast<std::size_t>(id.worker)] = {id.number, std::move(answer)};
}

Answer Saver::failed(const std::string& folder) const {
  return failed(folder, Failure::of(std::current_exception()));
}

Answer Saver::failed(const std::string& folder, const Failure& failure) const {
  const int error_number = failure.kind == Failure::Kind::system ? failure.error_number : EIO;
  log(LogLevel::warn, "server " + std::to_string(server_) + ": no checkpoint " + folder + ": " +
                          SystemError(failure.text, error_number).what());
  return Answer::with_text(Outcome::not_saved, failure.text, error_number);
}

void Saver::forget(int worker) {
  if (!running_ || running_->id.worker != worker) return;
  running_->is_unwanted = true;
  running_->writer.stop();
}

bool Saver::take_due(bool is_lowest) {
  if (server_ != 0 || plan_.every.count() == 0 || plan_.folder.empty()) return false;
  const Clock::time_point due = is_lowest ? due_ : due_ + plan_.every;
  if (running_ || is_publishing() || Clock::now() < due) return false;
  due_ = Clock::now() + plan_.every;
  return true;
}

void Saver::save_at_end(std::chrono::milliseconds timeout) {
  if (!plan_.at_end || plan_.folder.empty()) return;
  running_.reset();
  publication_.reset();  // it waits for that
  const std::string attempt = attempt_at_end();
  PartWriter writer(state_(), plan_.folder, attempt, server_, servers_);
  while (true) {
    if (writer.is_busy()) {
      wait_a_moment(milliseconds(1));
    } else if (!writer.next()) {
      break;
    }
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
    wait_a_moment(milliseconds(5));
  }
  publish_checkpoint(plan_.folder, attempt, servers_);
}

}  // namespace tutti::ps
