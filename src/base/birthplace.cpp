// A page that the kernel wipes in forked children.
#include "base/birthplace.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace tutti {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

Birthplace::Birthplace() : process_(::getpid()), mark_(nullptr) {
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, kPage, MADV_WIPEONFORK) != 0) {  // before Linux 4.14
    ::munmap(page, kPage);
    return;
  }
  mark_ = static_cast<volatile std::uint8_t*>(page);
  *mark_ = 1;
}

Birthplace::~Birthplace() {
  if (mark_ != nullptr) ::munmap(const_cast<std::uint8_t*>(mark_), kPage);
}

bool Birthplace::left() const { return mark_ != nullptr ? *mark_ == 0 : process_ != ::getpid(); }

}  // namespace tutti
