// What the kernel gives: random bytes, and the identity of the machine since it was started.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tutti {

/** Fills `bytes`, at most 256, with random numbers. Throws SystemError that they are for `what`. */
void fill_with_random(std::span<std::byte> bytes, const char* what);

/** Differs between machines, and between two starts of one; empty where the kernel says none. */
std::string boot_id();

/** As the machine calls itself; "this host" where it does not. */
std::string host_name();

/** Tells devices of file systems and namespaces apart, within a machine that runs; "-" for what is
 * not there. */
std::string identity_of(const char* path);

}  // namespace tutti
