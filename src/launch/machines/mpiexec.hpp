// Open MPI's mpiexec, which starts processes on several machines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.hpp"

namespace tutti::launch {

/** What `mpiexec --version` says first; empty if there is none in PATH. */
std::string mpi_version();

/**
 * Words of its command line, up to what is particular to a job, how many processes there are and
 * the program: process i runs on line i of the hostfile, in the current folder, and others go on
 * when one fails.
 */
std::vector<std::string> mpiexec_words(const std::string& hostfile, const std::string& binding);

/** A hostfile, which mpiexec inherits. It is in no folder: whoever is killed, nothing is left of
 * it. Throws SystemError. */
FileDescriptor write_hostfile(const std::vector<std::string>& names);

/** Its name for a process that inherits it. */
std::string name_of_inherited(const FileDescriptor& file);

/** The lines of what it has printed, without empty ones and rulers. The cause comes first and then
 * what mpiexec makes of it, so of many lines those in the middle are left out. */
std::string mpiexec_said(std::string_view printed);

}  // namespace tutti::launch
