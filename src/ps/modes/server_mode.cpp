// What the modes of a server have in common.
#include "ps/modes/server_mode.hpp"

#include <variant>

#include "base/refuse.hpp"

namespace tutti::ps {

Answer ServerMode::pull_changed(const Request&) { refuse("pull_changed is for GEO mode"); }

void ServerMode::answer(const Request& request, const Answer& answer) {
  give_answer(links_, request, answer);
}

void give_answer(Links& links, const Request& request, const Answer& answer) {
  links.answer(request, {answer.outcome, answer.number, std::ssize(answer.payload)},
               answer.payload);
}

std::unique_ptr<ServerMode> make_server_mode(const Mode& mode, Stores& stores,
                                             const Members& members, Links& links) {
  return std::visit(
      [&](const auto& chosen) { return make_server_mode(chosen, stores, members, links); }, mode);
}

}  // namespace tutti::ps
