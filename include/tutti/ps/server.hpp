// What a server does: it alone changes its tables and blocks, and serves until no worker is left.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tutti::ps {

/** Of one table on one server. */
struct TableStats {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;  ///< of memory that is taken
  std::int64_t created = 0;
  std::int64_t refused = 0;  ///< pushes for ids that its entry rule has not admitted
  std::int64_t evicted = 0;
};

/** What a server has done so far. */
struct ServerStats {
  std::vector<TableStats> tables;
  std::int64_t pushes = 0;  ///< messages of workers, each of rows of a table or of dense gradients
  std::int64_t rows_updated = 0;
  std::vector<int> lost_workers;  ///< their indices
};

/** One server. */
class Server {
 public:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  /** Which of the servers it is. */
  int index() const;
  /** Serves; blocks until all workers have stopped or are lost. Each loss is logged once. Throws
   * SystemError if a last checkpoint cannot be written, and, on server 0, DeadlineExceeded if the
   * other servers' parts of it do not come. */
  void run();
  /** Any thread may ask. */
  ServerStats stats() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::ps
