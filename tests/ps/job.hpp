// A parameter server whose workers and servers are threads of this process, for tests of modes.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/system.hpp"
#include "ps/dense/layout.hpp"
#include "ps/echo.hpp"
#include "ps/files/checkpoint.hpp"
#include "ps/greeting.hpp"
#include "ps/server.hpp"
#include "ps/table/initial.hpp"
#include "ps/worker.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test {

struct JobOptions {
  int workers = 1;
  int servers = 1;
  std::vector<TableSpec> tables{};
  std::vector<DenseParameter> dense{};
  Mode mode = Async{};
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  std::optional<std::chrono::milliseconds> server_timeout{};  ///< how long servers wait for workers
  std::string load{};
  std::string checkpoint{};
  std::chrono::seconds every{0};
  bool save_at_end = false;
  bool workers_serve = false;  ///< server i is in the process of worker i
};

/** Servers run from the beginning until the workers have gone. */
class Job {
 public:
  explicit Job(JobOptions options)
      : options_(std::move(options)),
        layout_(lay_out(options_.dense, options_.servers, {.min_block_size = 4})) {
    for (int server = 0; server < options_.servers; ++server) {
      places_.push_back(listen_as(server));
      addresses_.push_back(address_of(server, places_.back().endpoint));
      greetings_.emplace_back();
      stats_.emplace_back();
      held_.push_back(nullptr);
      server_places_.push_back(std::make_shared<ServerPlace>());
    }
    for (int server = 0; server < options_.servers; ++server)
      threads_.emplace_back([this, server] { serve(server); });
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { end(); }

  /** Waits until all servers have ended. */
  void end() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  using Body = std::function<void(Worker&)>;
  /** Runs the workers, each in a thread, and stops them unless they have been. What a body throws
   * is a failure of the test. */
  void run(const Body& body) {
    std::vector<std::thread> workers;
    for (int index = 0; index < options_.workers; ++index) {
      workers.emplace_back([this, index, &body] {
        try {
          const std::unique_ptr<Worker> worker = join(index);
          body(*worker);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "worker " << index << ": " << error.what();
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    end();
  }

  std::unique_ptr<Worker> join(int index) const {
    Meeting meeting =
        meet_servers(addresses_, index, worker_name(index), {"alike"}, format(), options_.timeout);
    std::vector<Joined>& joined = meeting.servers;
    WorkerParts parts;
    parts.index = index;
    parts.workers = worker_names(options_.workers);
    parts.tables = options_.tables;
    parts.dense = options_.dense;
    parts.seed = kSeed;
    parts.mode = options_.mode;
    parts.servers_save = options_.every.count() > 0;
    parts.loaded = !options_.load.empty();
    if (options_.workers_serve && index < options_.servers)
      parts.server_place = server_places_[static_cast<std::size_t>(index)];
    for (int server = 0; server < options_.servers; ++server) {
      const auto at = static_cast<std::size_t>(server);
      const Greeting greeting = Greeting::decode(joined[at].greeting);
      ServerEnd end{server_name(server), std::move(joined[at].link), {}, {}, layout_[at]};
      for (std::size_t i = 0; end.link->on_this_host() && i < options_.tables.size(); ++i)
        end.tables.emplace_back(identity(i, server), greeting.table_segment(i));
      const std::int64_t elements = element_count(layout_[at]);
      if (end.link->on_this_host() && elements > 0)
        end.dense.emplace(greeting.dense_segment(), elements);
      parts.servers.push_back(std::move(end));
    }
    return make_worker(std::move(parts));
  }

  /** Of a server that has ended. */
  const ServerStats& stats(int server) const { return stats_[static_cast<std::size_t>(server)]; }
  /** Waits until all servers know of so many workers that are lost, before any request that comes
   * after that. */
  void wait_for_losses(int count) {
    for (HeldLinks* const links : held_) links->wait_for_losses(count);
  }
  /** From now on this server takes no request, until it is released. */
  void hold(int server) { held_[static_cast<std::size_t>(server)]->hold(); }
  void release(int server) { held_[static_cast<std::size_t>(server)]->release(false); }
  /** It goes without a word to its workers, as if its process had ended. */
  void kill(int server) {
    killed_ = true;
    held_[static_cast<std::size_t>(server)]->release(true);
  }

  /** Under which the part of a server lies in the folder of a checkpoint while it is written. */
  std::string unfinished_part(int worker, int number, int server) const {
    return std::to_string(job_) + "-worker" + std::to_string(worker) + "-" +
           std::to_string(number) + ".tuttiparts/server-" + std::to_string(server) + ".tmp";
  }

  static constexpr std::uint64_t kSeed = 5;

 private:
  /** Lets a test hold a server up between two requests, or end it. */
  class HeldLinks final : public Links {
   public:
    explicit HeldLinks(std::unique_ptr<Links> links) : links_(std::move(links)) {}
    std::optional<Request> next(std::chrono::nanoseconds limit,
                                std::unique_lock<std::mutex>& serving) override {
      std::unique_lock lock(mutex_);
      is_held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !hold_; });
      is_held_ = false;
      if (end_) throw SystemError("the test ends this server", ECANCELED);
      lock.unlock();
      return links_->next(limit, serving);
    }
    std::optional<Request> poll() override { return links_->poll(); }
    void set_sleeping(bool sleeping) override { links_->set_sleeping(sleeping); }
    void answer(const Request& request, const ReplyHeader& header,
                std::span<const std::byte> payload) override {
      links_->answer(request, header, payload);
    }
    std::vector<LostWorker> lost() override {
      std::vector<LostWorker> lost = links_->lost();
      const std::lock_guard lock(mutex_);
      losses_ += static_cast<int>(lost.size());
      changed_.notify_all();
      return lost;
    }
    void drop(int worker) override { links_->drop(worker); }
    void wake() override { links_->wake(); }

    void wait_for_losses(int count) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return losses_ >= count; });
    }
    void hold() {
      std::unique_lock lock(mutex_);
      hold_ = true;
      links_->wake();
      changed_.wait(lock, [&] { return is_held_; });
    }
    void release(bool end) {
      const std::lock_guard lock(mutex_);
      hold_ = false;
      end_ = end;
      changed_.notify_all();
      links_->wake();
    }

   private:
    std::unique_ptr<Links> links_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int losses_ = 0;
    bool hold_ = false;
    bool is_held_ = false;
    bool end_ = false;
  };

  RowFormat format() const {
    RowFormat format;
    for (const TableSpec& table : options_.tables) format.dims.push_back(table.dim);
    return format;
  }

  TableIdentity identity(std::size_t table, int server) const {
    const TableSpec& spec = options_.tables[table];
    return {spec, table_seed(kSeed, spec.name), server, options_.servers};
  }

  void serve(int index) {
    const auto at = static_cast<std::size_t>(index);
    try {
      ServerParts parts;
      parts.index = index;
      parts.servers = options_.servers;
      parts.workers = worker_names(options_.workers);
      for (std::size_t i = 0; i < options_.tables.size(); ++i)
        parts.tables.emplace_back(identity(i, index), greetings_[at].table_segment(i));
      std::vector<OwnBlock> blocks;
      for (const Block& block : layout_[at]) {
        const DenseParameter& own = options_.dense[static_cast<std::size_t>(block.parameter)];
        blocks.push_back({block, own.rule, own.name, element_count(own)});
      }
      parts.dense = std::make_unique<DenseStore>(std::move(blocks), greetings_[at].dense_segment());
      if (!options_.load.empty()) {
        parts.round = load_checkpoint(options_.load, {parts.tables, parts.dense.get(), 0}, index,
                                      options_.servers);
      }
      parts.mode = options_.mode;
      parts.timeout = options_.server_timeout.value_or(options_.timeout);
      parts.checkpoint = options_.checkpoint;
      parts.every = options_.every;
      parts.save_at_end = options_.save_at_end;
      parts.job = job_;
      auto links = std::make_unique<HeldLinks>(
          meet_workers(std::move(places_[at].listener), parts.workers, {"alike"}, format(),
                       greetings_[at].encode(), options_.timeout));
      held_[at] = links.get();
      parts.links = std::move(links);
      parts.place = server_places_[at];
      const std::unique_ptr<Server> server = make_server(std::move(parts));
      server->run();
      stats_[at] = server->stats();
    } catch (const std::exception& error) {
      if (!killed_) ADD_FAILURE() << "server " << index << ": " << error.what();
    }
  }

  static std::uint64_t random_number() {
    std::uint64_t number = 0;
    fill_with_random(std::as_writable_bytes(std::span(&number, 1)), "a job");
    return number;
  }

  JobOptions options_;
  std::uint64_t job_ = random_number();
  DenseLayout layout_;
  std::vector<Place> places_;
  std::vector<ServerAddress> addresses_;
  std::vector<Greeting> greetings_;
  std::vector<ServerStats> stats_;
  std::vector<HeldLinks*> held_;  // while they serve; set before workers have met
  std::atomic<bool> killed_ = false;
  std::vector<std::shared_ptr<ServerPlace>> server_places_;
  std::vector<std::thread> threads_;
};

/** Rows of a worker's table. */
inline std::vector<float> rows_of(Worker& worker, int table, std::span<const std::int64_t> ids,
                                  std::int64_t dim) {
  std::vector<float> rows(ids.size() * static_cast<std::size_t>(dim));
  worker.lookup(table, ids, rows);
  return rows;
}

}  // namespace tutti::ps::test
