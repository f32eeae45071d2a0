// The command line of scale_sim.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/simulation/network.hpp"
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
      options.hosts = std::stoi(value);
    } else if (name == "--ranks") {
      options.ranks = std::stoi(value);
    } else if (name == "--latency-us") {
      options.latency_us = std::stod(value);
    } else if (name == "--gbps") {
      options.gbps = std::stod(value);
    } else if (name == "--overhead-ns") {
      options.overhead_ns = std::stod(value);
    } else if (name == "--timeout-ms") {
      options.timeout_ms = std::stoi(value);
    } else if (name == "--largest") {
      options.largest = std::stoll(value);
    } else if (name == "--json") {
      options.json = value;
    } else {
      throw InvalidArgument("unknown option " + std::string(name));
    }
  }
  if (argc % 2 == 0) throw InvalidArgument("the last option has no value");
  if (options.hosts < 2 || options.hosts > 4096 || options.ranks < 1) {
    throw InvalidArgument("--hosts is 2 to 4096, --ranks at least 1");
  }
  return options;
}

}  // namespace tutti::bench
