// Compares and prints envelopes.
#include "comm/envelope.hpp"

#include "tutti/error.hpp"

namespace tutti {

std::string Envelope::describe() const {
  if (tag == kGroupTag) return "(who makes a group)";
  return "(" + std::string(name_of(dtype)) + ", count " + std::to_string(count) + ", tag " +
         (tag == kAnyTag ? "any" : std::to_string(tag)) + ")";
}

void check_same(int sender, const Envelope& offered, int receiver, const Envelope& wanted) {
  if (offered.dtype == wanted.dtype && offered.count == wanted.count) return;
  throw MismatchError("rank " + std::to_string(sender) + " sends " + offered.describe() +
                      " to rank " + std::to_string(receiver) + ", which receives " +
                      wanted.describe());
}

}  // namespace tutti
