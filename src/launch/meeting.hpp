// How wrappers on other machines and the launcher find each other, and know that they are meant.
#pragma once

#include <netinet/in.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.hpp"
#include "launch/machines/hosts.hpp"
#include "launch/process/channel.hpp"
#include "launch/process/process.hpp"
#include "launch/process/timer.hpp"
#include "launch/wrapper.hpp"

namespace tutti::launch {

/** The variable by which Open MPI carries the secret of a job to the wrappers. */
inline constexpr const char* kSecretVariable = "TUTTI_JOB_SECRET";

/** After so long a peer that acknowledges nothing has gone. */
inline constexpr std::chrono::milliseconds kPeerSilence{8000};

/** How long the launcher waits for the wrappers of so many ranks to call. */
std::chrono::milliseconds arrival_limit(std::size_t ranks);
/** How long one that has called waits for what it is to run: always longer, so that it is the
 * launcher that says who has not called. */
std::chrono::milliseconds setup_limit(std::size_t ranks);

/** What a wrapper has said of itself. */
struct Caller {
  int rank = 0;
  bool control = false;  ///< whether this is its connection for control, or for output
  std::string host;      ///< as its machine calls itself
  std::string version;
  std::string clock;               ///< whose, which is of all processes of a kernel
  SteadyClock::duration behind{};  ///< how far that is behind ours
};

/**
 * Where wrappers call. Both ends prove that they hold the job's secret (a keyed hash of what the
 * other has made up) before anything else is said; what follows is not encrypted.
 */
class Meeting {
 public:
  /** Listens on a port of its own. Throws SystemError. */
  explicit Meeting(std::chrono::milliseconds silence = kPeerSilence);

  const std::string& secret() const { return secret_; }
  /** "10.0.0.1:40000,10.0.1.1:40000": where the machines of these names can call. */
  std::string addresses_for(const std::vector<Host>& hosts) const;

  /** Descriptors to wait for. */
  std::vector<int> descriptors() const;
  /** Takes calls and what callers say; hands over connections that have proved themselves. Never
   * blocks. Throws SystemError if this process may not have so many connections. */
  void step(const std::function<void(const Caller&, Channel)>& take);
  /** Nobody else is welcome. */
  void close();

 private:
  struct Guest {
    Channel channel;
    std::string challenge;
    Caller caller;
    bool proved = false;
    bool refused = false;
    SteadyClock::time_point since;
  };
  void accept();
  void hear(Guest& guest, MessageType type, std::string_view text);

  std::chrono::milliseconds silence_;  // after which a peer has gone
  FileDescriptor listener_;
  int port_ = 0;
  std::string secret_;
  std::vector<Guest> guests_;
};

/** What the launcher has a wrapper do: its options and what the rank's environment has besides. */
std::string setup_text(const WrapperOptions& options, const std::vector<Variable>& environment);

/**
 * In a wrapper that mpiexec has started: calls the launcher at one of `addresses`, changes the
 * environment as that says, and returns what to run; the control and output sockets among it.
 * Throws SystemError if the launcher cannot be reached or is another.
 */
WrapperOptions join_launcher(const std::string& addresses,
                             std::chrono::milliseconds silence = kPeerSilence);

}  // namespace tutti::launch
