// Lists of endpoints, by which Paddle's launchers name the trainers and servers of a job.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/** "host:port" of each process, and whether all are on one host. */
struct Endpoints {
  std::vector<std::string> all;
  bool one_host = true;

  int count() const { return static_cast<int>(all.size()); }
  /** The list as its launchers write it, with commas. */
  std::string text() const;
};

/** Reads what the argument or variable `name` holds. Throws InvalidArgument unless it is a list of
 * host:port, each of them once. A host is what is before the last colon, as it is written. */
Endpoints parse_endpoints(std::string_view name, std::string_view text);

}  // namespace tutti
