// A page that the kernel wipes in forked children.
#include "base/fork_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace tutti {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

ForkGuard::ForkGuard() : process_(::getpid()), mark_(nullptr) {
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, kPage, MADV_WIPEONFORK) != 0) {  // before Linux 4.14
    ::munmap(page, kPage);
    return;
  }
  mark_ = static_cast<volatile std::uint8_t*>(page);
  *mark_ = 1;
}

ForkGuard::~ForkGuard() {
  if (mark_ != nullptr) ::munmap(const_cast<std::uint8_t*>(mark_), kPage);
}

bool ForkGuard::in_child() const { return mark_ != nullptr ? *mark_ == 0 : process_ != ::getpid(); }

}  // namespace tutti
