// Shows what the flight recorders say of a failure.
#include <unistd.h>

#include <atomic>
#include <exception>
#include <string>
#include <system_error>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "comm/record/flight.hpp"
#include "tutti/error.hpp"
#include "tutti/output_file.hpp"

namespace tutti::record {

std::optional<std::filesystem::path> flight_folder() {
  const auto text = environment("TUTTI_FLIGHT");
  if (!text) return std::nullopt;
  const std::filesystem::path folder = *text;
  try {
    std::filesystem::create_directories(folder);
    const OutputFile probe(folder / ("probe-" + std::to_string(::getpid())));
  } catch (const std::exception& error) {
    throw InvalidArgument("TUTTI_FLIGHT is '" + *text +
                          "', but must be a folder to write to: " + error.what());
  }
  return folder;
}

void tell_flight(const Flight& flight, int teller) noexcept {
  static std::atomic<int> told = 0;  // by this process
  try {
    log(LogLevel::error, flight.table());
    const auto folder = flight_folder();
    if (!folder) return;
    const std::string name = "flight-rank" + std::to_string(teller) + "-" +
                             std::to_string(::getpid()) + "-" + std::to_string(++told) + ".json";
    OutputFile file(*folder / name);
    file.write(flight.json());
    file.commit();
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string("what the ranks did last could not be told: ") + error.what());
  }
}

}  // namespace tutti::record
