// What a machine says of itself when it is asked whether ranks can run on it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tutti::launch {

/** An answer: values by their names. `fault` is what is wrong, if anything is. */
using Facts = std::map<std::string, std::string>;

/**
 * `tutti check --ranks 2:6170,2 -- FILES`: prints the answer of this machine, which is the one of
 * several that mpiexec says, or the first, and gets so many ranks, of which some listen on these
 * ports, and which execute the first file and read the others; the exit code. Throws
 * InvalidArgument if it is called otherwise.
 */
int run_check(const std::vector<std::string>& arguments);

/** The answers among what was printed, by the machines' numbers. */
std::map<std::size_t, Facts> find_answers(const std::string& printed);

}  // namespace tutti::launch
