// Which machines a job runs on, and how many ranks and which GPUs they get.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launch/machines/hosts.hpp"
#include "launch/machines/machine.hpp"
#include "launch/options.hpp"

namespace tutti::launch {

/**
 * Of machines that are all given this command, as with fleetrun (--ips, --servers, --workers,
 * --heter_workers), the one that starts the ranks of all, if that is not this one. Throws
 * InvalidArgument if it cannot be told, since one of them is named by a name that each has for
 * itself.
 */
std::optional<std::string> other_starter(const RunOptions& options);

/**
 * The machines of a job: those that the options name, or else those that Slurm or PBS has given it;
 * empty if it is this one alone. Throws InvalidArgument if they contradict each other.
 */
std::vector<Host> machines_of(const RunOptions& options, const Machine& machine);

/** How many ranks without roles this machine gets, which has so many GPUs for them. */
int count_ranks(const RunOptions& options, const Machine& machine, std::size_t gpus);

/** How many ranks are asked for where all machines that are named are this one; 0 if nobody says.
 */
int own_slots(const RunOptions& options);

/** The GPUs of --gpus, which are among those that the user has made visible, or else the latter.
 * Throws InvalidArgument. */
std::vector<std::string> choose_gpus(const RunOptions& options, const Machine& machine);

}  // namespace tutti::launch
