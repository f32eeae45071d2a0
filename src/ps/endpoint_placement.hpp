// The place of a process among servers that listen at given endpoints, and their workers.
#pragma once

#include <memory>
#include <string>

#include "tutti/ps/fleet.hpp"

namespace tutti::ps {

/** Arguments or variables, and what they are called in errors. */
struct EndpointPlace {
  std::string list_name;
  std::string list;  ///< "host:port,host:port"
  std::string workers_name;
  int workers = 0;
  std::string index_name;
  int index = 0;
  bool serves = false;
};

/** Throws InvalidArgument for what makes no sense, and for hosts that cannot be looked up. */
std::unique_ptr<Placement::Impl> place_by_endpoints(const EndpointPlace& place);

}  // namespace tutti::ps
