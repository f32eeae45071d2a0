// The command line of scale_sim.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/simulation/network.hpp"
#include "support/numbers.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {

/** Of scale_sim: how many hosts, what joins them, and how far it goes. */
struct ScaleOptions {
  int hosts = 64;
  int ranks = 8;
  double latency_us = 10;
  double gbps = 100;
  double overhead_ns = 500;
  int timeout_ms = 5000;
  std::int64_t room = 0;  ///< bytes that a connection holds; there are none without
  std::int64_t largest = std::int64_t{1} << 20;
  std::string json;

  simulation::NetworkModel model() const {
    simulation::NetworkModel model;
    model.latency = std::chrono::nanoseconds(std::llround(latency_us * 1e3));
    model.overhead = std::chrono::nanoseconds(std::llround(overhead_ns));
    model.bytes_per_second = gbps * 1e9 / 8;
    return model;
  }
};

/** Throws InvalidArgument. */
inline ScaleOptions parse_scale_options(int argc, char** argv) {
  ScaleOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--hosts") {
      options.hosts = number_of(name, value, 2, 4096);
    } else if (name == "--ranks") {
      options.ranks = number_of(name, value, 1, 4096);
    } else if (name == "--latency-us") {
      options.latency_us = positive_of(name, value, 1e6);
    } else if (name == "--gbps") {
      options.gbps = positive_of(name, value, 1e6);
    } else if (name == "--overhead-ns") {
      options.overhead_ns = number_of(name, value, 0.0, 1e9);
    } else if (name == "--timeout-ms") {
      options.timeout_ms = number_of(name, value, 1, 1'000'000);
    } else if (name == "--room") {
      options.room = number_of<std::int64_t>(name, value, 0, std::int64_t{1} << 30);
    } else if (name == "--largest") {
      options.largest = number_of<std::int64_t>(name, value, 8, std::int64_t{1} << 34);
    } else if (name == "--json") {
      options.json = value;
    } else {
      throw InvalidArgument("unknown option " + std::string(name));
    }
  }
  if (argc % 2 == 0) throw InvalidArgument("the last option has no value");
  return options;
}

}  // namespace tutti::bench
