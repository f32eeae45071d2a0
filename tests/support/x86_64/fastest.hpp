// Loops with the instructions that this machine has.
#pragma once

namespace tutti::test {

/** What `body` calls becomes part of it, so that its loops have AVX2. */
template <class Body>
[[gnu::target("avx2"), gnu::flatten]] void with_avx2(const Body& body) {
  body();
}

/** Calls `body`, whose loops take as many elements at a time as this machine can. */
template <class Body>
void fastest(const Body& body) {
  if (__builtin_cpu_supports("avx2")) return with_avx2(body);
  body();
}

}  // namespace tutti::test
