// The processes of a trial: they are started, watched, and ended, whatever they do.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rig/record.hpp"
#include "rig/trial.hpp"
#include "support/folder.hpp"

namespace tutti::test {

/** How this program is started again, as a rank under mpiexec. */
struct Program {
  std::string path;
  std::string mpiexec = "mpiexec";
};

/** A directory of its own, and where the machine allows it a /dev/shm of its own, too: what is
 * left there is this process' and its children's. */
class Sandbox {
 public:
  Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;
  ~Sandbox() = default;

  std::string file(const std::string& name) const { return folder_ / name; }
  const std::string& directory() const { return folder_.path(); }
  bool has_own_shm() const { return has_own_shm_; }

 private:
  Folder folder_;
  bool has_own_shm_;
};

/** The job that runs a trial's ranks. All that it starts become children of this process, which
 * starts one job at a time. */
class Job {
 public:
  Job(const Trial& trial, const Program& program, const Sandbox& sandbox, Record& record);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  /** Looks which processes have ended. */
  void look();
  /** Whether all processes that were started directly have ended. */
  bool is_over() const { return alive_ == 0; }
  /** Of mpiexec; of forked ranks the first that is not 0. */
  int status() const { return status_; }
  /** Signals that ended forked ranks, by rank; of mpiexec's ranks nothing is known. */
  const std::map<int, int>& signals() const { return signals_; }
  /** Processes that there still are, with their names. */
  static std::string alive();
  /** Whether what this process started has children that have not ended: mpiexec's ranks. */
  static bool has_living_grandchildren();

 private:
  void fork_ranks(const Trial& trial, Record& record);
  void start_mpiexec(const Trial& trial, const Program& program, const Sandbox& sandbox);

  std::vector<pid_t> started_;
  int alive_ = 0;
  int status_ = 0;
  std::map<int, int> signals_;
};

/** The file in which mpiexec's ranks find their record, and the output of the job. */
inline constexpr const char* kRecordFile = "record";
inline constexpr const char* kOutputFile = "output";

}  // namespace tutti::test
