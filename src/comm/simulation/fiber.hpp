// A function with a stack of its own, which its thread leaves and comes back to.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <functional>

namespace tutti::simulation {

/** Runs on the thread that resumes it, always the same one. What it throws ends the program. */
class Fiber {
 public:
  /** Nothing runs before the first resume(). Throws SystemError without memory for the stack. */
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = std::size_t{256} << 10U);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  /** The stack goes as it is: what lives on it is not destroyed, unless the body has ended. */
  ~Fiber();

  /** Runs the body until it suspends itself, or ends. */
  void resume();
  /** By the body: back to who has resumed it. */
  void suspend();
  bool ended() const { return ended_; }

 private:
  /** What the C++ runtime keeps of a thread's exceptions: __cxa_eh_globals. */
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };
  void begin();
  void swap_exceptions();
  static void run(unsigned int high, unsigned int low);

  std::function<void()> body_;
  std::size_t page_;
  std::size_t stack_bytes_;
  void* memory_;
  std::jmp_buf place_{};
  std::jmp_buf resumer_{};
  Exceptions exceptions_;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  const void* resumer_stack_ = nullptr;
  std::size_t resumer_bytes_ = 0;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace tutti::simulation
