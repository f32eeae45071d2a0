// Stacks, and jumps between them.
#include "comm/simulation/fiber.hpp"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tutti/error.hpp"

// AddressSanitizer, where it is, is told of each change of stacks.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming, bugprone-reserved-identifier)
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                  std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom,
                                                   std::size_t* size);
// NOLINTEND(readability-identifier-naming, bugprone-reserved-identifier)
}

namespace tutti::simulation {
namespace {

void start_switch(void** fake_stack, const void* bottom, std::size_t size) {
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(fake_stack, bottom, size);
  }
}

void finish_switch(void* fake_stack, const void** bottom, std::size_t* size) {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
  }
}

}  // namespace

Fiber::Fiber(std::function<void()> body, std::size_t stack_bytes)
    : body_(std::move(body)),
      page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
      stack_bytes_(stack_bytes),
      memory_(::mmap(nullptr, page_ + stack_bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  // Nothing below the stack may be touched.
  if (memory_ == MAP_FAILED || ::mprotect(memory_, page_, PROT_NONE) != 0) {
    throw SystemError("a fiber's stack", errno);
  }
}

Fiber::~Fiber() { ::munmap(memory_, page_ + stack_bytes_); }

void Fiber::swap_exceptions() {
  void* const globals = abi::__cxa_get_globals();
  Exceptions current;
  std::memcpy(&current, globals, sizeof current);
  std::memcpy(globals, &exceptions_, sizeof exceptions_);
  exceptions_ = current;
}

// ucontext makes a fiber; from then on jumps switch, since swapcontext() is a call of the system.
// Frames that are left by a jump are not marked, or AddressSanitizer would find them again.
// NOLINTBEGIN(cert-err52-cpp, modernize-avoid-setjmp-longjmp)

[[gnu::no_sanitize_address]] void Fiber::resume() {
  swap_exceptions();
  void* fake_stack = nullptr;
  start_switch(&fake_stack, static_cast<char*>(memory_) + page_, stack_bytes_);
  if (_setjmp(resumer_) == 0) {
    if (!begun_) begin();
    std::longjmp(place_, 1);
  }
  finish_switch(fake_stack, nullptr, nullptr);
  swap_exceptions();
}

[[gnu::no_sanitize_address]] void Fiber::suspend() {
  start_switch(ended_ ? nullptr : &fake_stack_, resumer_stack_, resumer_bytes_);
  if (_setjmp(place_) == 0) std::longjmp(resumer_, 1);
  finish_switch(fake_stack_, &resumer_stack_, &resumer_bytes_);
}

[[gnu::no_sanitize_address]] void Fiber::begin() {
  begun_ = true;
  ucontext_t context;
  ::getcontext(&context);
  context.uc_stack.ss_sp = static_cast<char*>(memory_) + page_;
  // Not all at the same place of a page, or they would be in each other's way in the cache.
  const auto address = reinterpret_cast<std::uintptr_t>(memory_);
  context.uc_stack.ss_size = stack_bytes_ - address / (page_ + stack_bytes_) % 32 * 256;
  context.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&context, reinterpret_cast<void (*)()>(&Fiber::run), 2,
                static_cast<unsigned int>(self >> 32U), static_cast<unsigned int>(self));
  ::setcontext(&context);
}
// NOLINTEND(cert-err52-cpp, modernize-avoid-setjmp-longjmp)

/** makecontext() hands over ints: the two halves of `this`. */
void Fiber::run(unsigned int high, unsigned int low) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32U | low);
  finish_switch(nullptr, &self->resumer_stack_, &self->resumer_bytes_);
  self->body_();
  self->ended_ = true;
  self->suspend();
}

}  // namespace tutti::simulation
