// Takes lists of endpoints apart.
#include "comm/communicator/endpoints.hpp"

#include <algorithm>

#include "base/refuse.hpp"
#include "base/text.hpp"

namespace tutti {
namespace {

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string_view host_of(std::string_view endpoint) {
  return endpoint.substr(0, endpoint.rfind(':'));
}

bool is_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const auto port = parse_number<int>(text.substr(colon + 1));
  return port && *port >= 1 && *port <= 65535;
}

}  // namespace

std::string Endpoints::text() const {
  std::string list;
  for (const std::string& endpoint : all) list.append(list.empty() ? "" : ",").append(endpoint);
  return list;
}

Endpoints parse_endpoints(std::string_view name, std::string_view text) {
  Endpoints endpoints;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string endpoint(without_blanks(rest.substr(0, comma)));
    if (!is_endpoint(endpoint)) {
      refuse(name, " is '", text, "', but must be a list of host:port, with commas between");
    }
    if (std::find(endpoints.all.begin(), endpoints.all.end(), endpoint) != endpoints.all.end()) {
      refuse(name, " has ", endpoint, " twice, but each process has an endpoint of its own");
    }
    endpoints.all.push_back(endpoint);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  endpoints.one_host = std::all_of(
      endpoints.all.begin(), endpoints.all.end(),
      [&](const std::string& endpoint) { return host_of(endpoint) == host_of(endpoints.all[0]); });
  return endpoints;
}

}  // namespace tutti
