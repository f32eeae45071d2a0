// A process that may open few files.
#pragma once

#include <sys/resource.h>

namespace tutti::test {

/** While it lives, this process gets no descriptor whose number is `end` or more. */
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t end) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{end, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace tutti::test
