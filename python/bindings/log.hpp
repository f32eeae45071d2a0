// The library's log lines as records of Python's logging.
#pragma once

namespace tutti::python {

/**
 * Has log lines kept for pass_on_log(): they come up on any thread, under locks and without the
 * GIL, where no Python can run.
 */
void keep_log();
/** Asks the logger which lines it wants. With the GIL, as all of these. */
void ask_logger();
/** Gives the logger "tutti" what was kept. Throws what a signal handler raises meanwhile. */
void pass_on_log();
/** Passes on what is left. From then on lines go to stderr. */
void stop_keeping_log();

}  // namespace tutti::python
