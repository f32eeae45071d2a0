// Programs that start several processes, and what MPI knows of them.
#pragma once

namespace tutti {

/**
 * For a process that is alone as far as MPI knows: throws InvalidArgument if the environment says
 * that a launcher has started several, each of which would go on alone as rank 0. Names the
 * variables, and says how to start the processes so that they find each other.
 */
void refuse_unknown_launcher();

}  // namespace tutti
