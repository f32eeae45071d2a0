// Stands for ps-lite where it is not installed.
#include "ps/side.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {

std::unique_ptr<PsSide> make_pslite_side(const PsLoad&) {
  throw BackendUnavailable(
      "this program was built without ps-lite: cmake -D PSLITE_ROOT=DIR, where it was built");
}

}  // namespace tutti::bench
