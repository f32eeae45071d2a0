// Runs a fuzzer for some inputs or seconds, from a seed; or the inputs of files. An input that
// fails is written to a file, with the command that runs it again.
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/fuzzer.hpp"
#include "fuzz/mutator.hpp"

namespace tutti::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kLongest = 20;  // seconds for one input

struct Options {
  double seconds = 0.0;       ///< until then, or
  std::uint64_t runs = 1000;  ///< so many inputs
  std::uint64_t seed = 1;
  std::vector<std::string> files;
};

/** What is under way, for the handlers of its failure. */
struct Current {
  std::string program;
  const Input* input = nullptr;
  std::uint64_t seed = 0;
};

Current& current() {
  static Current only;
  return only;
}

/** For a process that is about to end over an input. */
void save_input() {
  const Input* const input = std::exchange(current().input, nullptr);
  if (input == nullptr) return;
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const std::uint8_t byte : *input) hash = (hash ^ byte) * 0x100000001B3ULL;
  char name[32];
  std::snprintf(name, sizeof name, "-%016llx.input", static_cast<unsigned long long>(hash));
  const std::string path = current().program.substr(current().program.rfind('/') + 1) + name;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(input->data()),
             static_cast<std::streamsize>(input->size()));
  std::fprintf(stderr, "seed %llu; to run this input again: %s %s\n",
               static_cast<unsigned long long>(current().seed), current().program.c_str(),
               path.c_str());
}

void on_signal(int signal) {
  std::fprintf(stderr, "%s\n", signal == SIGALRM ? "this input takes too long" : "aborted");
  save_input();
  ::_exit(1);
}

/** Whether it was accepted. */
bool run(const Input& input) {
  current().input = &input;
  ::alarm(kLongest);
  // A copy of exactly its size, so that the sanitizer sees what reads beyond it.
  const Input copy(input.begin(), input.end());
  const bool accepted = LLVMFuzzerTestOneInput(copy.data(), copy.size()) == 0;
  ::alarm(0);
  current().input = nullptr;
  return accepted;
}

void fuzz(const Options& options) {
  const std::vector<Input> valid = seeds();
  for (const Input& input : valid) {
    const bool accepted = run(input);
    current().input = &input;
    expect(accepted, "a valid input was refused");
  }
  Mutator mutator(valid, options.seed);
  std::uint64_t runs = 0;
  std::uint64_t accepted = 0;
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while (options.seconds > 0.0 ? passed() < options.seconds : runs < options.runs) {
    const Input input = mutator.next();
    const std::size_t ways = refusals().size();
    const bool taken = run(input);
    if (taken || refusals().size() > ways) mutator.learn(input);
    accepted += taken ? 1 : 0;
    ++runs;
  }
  std::printf("%s: %llu inputs of seed %llu in %.1f s, %llu accepted, refused in %zu ways\n",
              current().program.c_str(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(options.seed), passed(),
              static_cast<unsigned long long>(accepted), refusals().size());
}

/** Nothing, and a word on stderr, if the command line makes no sense. */
bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--")) {
      options.files.emplace_back(word);
      continue;
    }
    const char* const value = ++i < argc ? argv[i] : "";
    char* end = nullptr;
    if (word == "--seconds") options.seconds = std::strtod(value, &end);
    if (word == "--runs") options.runs = std::strtoull(value, &end, 10);
    if (word == "--seed") options.seed = std::strtoull(value, &end, 10);
    if (end != nullptr && end != value && *end == '\0') continue;
    std::fprintf(stderr, "usage: %s [--seconds S | --runs N] [--seed N] [FILE...]\n", argv[0]);
    return false;
  }
  return true;
}

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) return 2;
  current().program = argv[0];
  current().seed = options.seed;
  std::signal(SIGALRM, on_signal);
  std::signal(SIGABRT, on_signal);
  for (const std::string& path : options.files) {
    std::ifstream file(path, std::ios::binary);
    const Input input{std::istreambuf_iterator<char>(file), {}};
    std::printf("%s: %s\n", path.c_str(), run(input) ? "accepted" : "refused");
  }
  if (options.files.empty()) fuzz(options);
  return 0;
}

}  // namespace
}  // namespace tutti::fuzz

// A sanitizer that finds something aborts, so that the input is saved. No input of some kilobytes
// needs more than 256 MiB.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier): the sanitizers' names
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:detect_leaks=0:max_allocation_size_mb=256";
}
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)

int main(int argc, char** argv) { return tutti::fuzz::main(argc, argv); }
