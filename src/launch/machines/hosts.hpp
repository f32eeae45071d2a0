// Which machines a job runs on, as options, files and resource managers name them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

/** A machine, how many ranks it gets (0: as --nproc_per_node says), and ports of it that options
 * name. */
struct Host {
  std::string name;
  int slots = 0;
  std::vector<int> ports{};

  friend bool operator==(const Host&, const Host&) = default;
};

/** "a:2,b:2", or names alone. `option` is what refusals name. A machine that comes again gets more
 * ranks. Throws InvalidArgument. */
std::vector<Host> parse_hosts(const std::string& option, std::string_view text);

/** Those of a file with a line a machine, in Open MPI's form: `name slots=2`, or `name:2`; `#`
 * begins a comment. Throws InvalidArgument that names the line, SystemError if it cannot be read.
 */
std::vector<Host> read_hostfile(const std::string& path);

/** Whether this is a job of Slurm or PBS, which then also says how machines are reached. */
bool has_resource_manager();

/** Throws InvalidArgument if srun has started several of this process. */
void check_alone_in_step();

/** Those that Slurm or PBS has given this job, if it runs in one; none otherwise. */
std::vector<Host> allocated_hosts();

/** Throws InvalidArgument for a name that ssh would take for an option, or mpiexec for several
 * words.
 */
void check_names(const std::vector<Host>& hosts);

/** "node[1-3,07],head" as a list of names, as Slurm writes them. Throws InvalidArgument. */
std::vector<std::string> expand_nodes(std::string_view text);

}  // namespace tutti::launch
