// What the user sees: the ranks' output, the launcher's own lines, a line of the state.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/console.hpp"
#include "launch/options.hpp"
#include "launch/plan.hpp"
#include "launch/process/channel.hpp"
#include "launch/process/text_lines.hpp"
#include "launch/process/timer.hpp"

namespace tutti::launch {

/**
 * Shows output of ranks: of the one that is shown in full as it is, of others as lines that begin
 * with their ranks, on the stream that it came from. Lines that several ranks print within a tenth
 * of a second are shown once. The state is drawn on the last line of a terminal.
 */
class Display {
 public:
  explicit Display(const RunOptions& options);

  /** For these ranks from now on. */
  void begin(const Plan& plan);
  /** Whether output() is to be given a rank's stdout, */
  bool shows_out(int rank) const { return tee_.shows(rank); }
  /** and the stderr of all. */
  bool shows_err() const { return !tee_.nothing(); }

  void output(const RankPlan& rank, MessageType stream, std::string_view text);
  /** A rank has no more output. */
  void end_output(const RankPlan& rank);
  /** A line of the launcher's own, or several. */
  void say(std::string_view text);
  /** What is going on; drawn on a terminal alone. */
  void set_state(std::string text) { state_ = std::move(text); }
  bool draws_state() const { return err_.terminal(); }

  /** Shows lines that have waited for others of their kind; draws the state. */
  void refresh();
  /** Shows everything that waits, and no state any more. */
  void finish();
  /** Writes what is taken now. */
  void flush();

  /** From now on leaves out what is not taken at once: nobody waits for who reads it. */
  void hurry();
  bool hurries() const { return hurries_; }

  /** When refresh() has something to do. */
  const Timer& timer() const { return timer_; }
  /** Whether ranks should wait until what there is was read. */
  bool full() const { return out_.full() || err_.full(); }
  Sink& out() { return out_; }
  Sink& err() { return err_; }

 private:
  struct Line {
    MessageType stream;
    std::string text;
    std::set<int> ranks;
    SteadyClock::time_point since;
  };

  Sink& sink_of(MessageType stream);
  void write(Sink& sink, std::string_view text);
  void write_lines(MessageType stream, std::string_view lines);
  void write_first();
  /** Those that have waited since then or longer. */
  void write_waiting(SteadyClock::time_point until);
  std::string prefix_of(const std::set<int>& ranks) const;
  void add_line(const RankPlan& rank, MessageType stream, std::string_view text);
  void clear_state();

  Tee tee_;
  std::optional<std::string> prefix_;
  const Plan* plan_ = nullptr;
  Sink out_{1};
  Sink err_{2};
  bool one_sink_;  // both are one terminal, pipe or file: written in order
  std::map<std::pair<int, MessageType>, LineBuffer> buffers_;
  std::deque<Line> waiting_;
  std::uint64_t first_waiting_ = 0;            // the number of the first of them
  std::map<int, std::uint64_t> last_of_rank_;  // one more than the number of its last line
  std::string state_;
  bool state_drawn_ = false;
  bool hurries_ = false;
  Timer timer_;
};

}  // namespace tutti::launch
