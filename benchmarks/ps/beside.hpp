// Two processes on two processors, one of which does something while the other is timed.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <new>

#include "base/huge_pages.hpp"

namespace tutti::bench {

inline double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/** What two processes tell each other. */
struct Shared {
  std::atomic<bool> ready{false};
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> rows{0};  ///< that a growing table has
  std::atomic<double> rate{0};
  std::atomic<bool> right{true};
};

/** Zeros, in huge pages where a table has them. */
class SharedPages {
 public:
  explicit SharedPages(std::size_t bytes) : bytes_(bytes) {
    const auto size = static_cast<std::int64_t>(bytes);
    data_ = map_aligned(size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    std::memset(data_, 0, bytes);
    put_into_huge_pages(static_cast<std::byte*>(data_), size / kHugePage * kHugePage);
  }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  ~SharedPages() { ::munmap(data_, bytes_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

inline void use_processor(int number) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  CPU_SET(static_cast<std::size_t>(number), &processors);
  ::sched_setaffinity(0, sizeof(processors), &processors);
}

/** Runs `body` in a process of its own, on the second processor, while this one does `meanwhile`.
 * Nothing is right if that process does not get to its end. */
inline void beside(Shared& shared, const std::function<void()>& body,
                   const std::function<void()>& meanwhile) {
  shared.ready = false;
  shared.stop = false;
  const pid_t child = ::fork();
  if (child == 0) {
    use_processor(1);
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  use_processor(0);
  int status = 0;
  bool has_ended = false;
  while (!shared.ready && !has_ended) {
    has_ended = ::waitpid(child, &status, WNOHANG) != 0;
    ::usleep(100);
  }
  meanwhile();
  shared.stop = true;
  if (!has_ended) ::waitpid(child, &status, 0);
  if (status != 0) shared.right = false;
}

inline double processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/** Rows a second of the processor's time, by as many calls as fit into so much of it. */
inline double rate_of(double seconds, std::size_t batch_rows, std::size_t& batch,
                      const std::function<void(std::size_t)>& call) {
  const double start = processor_time();
  const std::size_t first = batch;
  while (processor_time() - start < seconds) call(batch++);
  return static_cast<double>((batch - first) * batch_rows) / (processor_time() - start);
}

}  // namespace tutti::bench
