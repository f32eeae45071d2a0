// What a communicator might leave behind: descriptors, threads, mappings, files in /dev/shm.
#pragma once

#include <cstddef>
#include <set>
#include <string>

namespace tutti::test {

/** The files of tutti in /dev/shm. */
std::set<std::string> shared_files();

/** What this process has open now, and tutti's files in /dev/shm, to compare with later. */
class Leftovers {
 public:
  Leftovers();

  /** Descriptors, threads and mappings of this process that have appeared since and stay, in
   * words. Empty if there are none. */
  std::string in_process() const;
  /** Files that have appeared since and stay. Other programs may be meeting meanwhile. */
  std::string in_dev_shm() const;

 private:
  std::size_t descriptors_;
  std::size_t threads_;
  std::size_t mappings_;
  std::set<std::string> files_;
};

}  // namespace tutti::test
