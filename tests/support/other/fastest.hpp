// Loops with the instructions that every machine has.
#pragma once

namespace tutti::test {

/** Calls `body`. */
template <class Body>
void fastest(const Body& body) {
  body();
}

}  // namespace tutti::test
