// Joins the ranks that a launcher has started.
#include "tutti/launch.hpp"

#include "comm/communicator/backends.hpp"
#include "comm/communicator/launcher.hpp"
#include "comm/communicator/options.hpp"

namespace tutti {

std::string launched_by() { return find_launch().by; }

Communicator from_endpoints(std::string_view endpoints, int trainer_id,
                            const CommOptions& options) {
  const Launch launch = launch_of_endpoints(endpoints, trainer_id);
  return Communicator(connect_launch(launch, checked_timeout(options.timeout)));
}

}  // namespace tutti
