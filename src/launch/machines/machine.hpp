// What this machine has: processors, GPUs, addresses, ports, programs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace tutti::launch {

/** A processor that this process may use. */
struct Processor {
  int number = 0;
  int socket = 0;
};

struct Machine {
  std::string name;
  std::vector<Processor> processors;
  std::vector<std::string> gpus;  ///< as CUDA_VISIBLE_DEVICES names them, or all there are
  bool has_gpus = false;          ///< whether there are any, whatever that variable says
};

/** The machine that this process runs on. */
Machine this_machine();

/** Whether this is a name or an address that each machine has for itself: localhost, 127.0.0.1. */
bool is_loopback(const std::string& host);

/** Whether this is an address or a name of this machine. */
bool is_this_machine(const std::string& host);

/** Ports that nobody else on this machine gets while this lives, or until they are released. */
class ReservedPorts {
 public:
  /** Without `hold_named` ports that are named need not be free: for what is only shown. */
  explicit ReservedPorts(bool hold_named = true) : hold_named_(hold_named) {}

  /** A port that is free. Throws SystemError if there is none. */
  int take();
  /** This port; throws InvalidArgument that `what` wants it if it is in use, or taken already. */
  void take(int port, const std::string& what);
  /** Lets the ranks have them. */
  void release() { sockets_.clear(); }

 private:
  bool hold_named_;
  std::map<int, FileDescriptor> sockets_;  // by port
};

/** The file that PATH has for the name of a program. */
std::optional<std::string> find_in_path(const std::string& name);

/**
 * The program with its arguments as execve() takes it: what PATH finds, or Python and a script
 * (NAME.py) or module. Throws InvalidArgument if it is not there or may not be executed.
 */
std::vector<std::string> resolve_program(const std::vector<std::string>& program, bool module);

/**
 * The files of such a program: its own, and the script if it is Python with one. Of a module there
 * is only Python's.
 */
std::vector<std::string> files_of_program(const std::string& name, bool module);

/** Throws InvalidArgument if they are not here: the first, to be executed, and others, to be read.
 */
void check_files(const std::vector<std::string>& files);

/** What a rank needs of /dev/shm to meet the others, or less. */
inline constexpr std::int64_t kSharedBytesPerRank = 9 << 18;

/** Throws SystemError if /dev/shm has too little room for so many ranks to meet. */
void check_shared_memory(int ranks);

}  // namespace tutti::launch
