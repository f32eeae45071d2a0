// The command line of `tutti rank`.
#include <array>
#include <string_view>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "launch/machines/machine.hpp"
#include "launch/process/lists.hpp"
#include "launch/wrapper.hpp"

namespace tutti::launch {
namespace {

int descriptor(const std::string& name, const std::string& value) {
  const auto number = parse_number<int>(value);
  if (!number || *number < 3) refuse(name, " is '", value, "', which is no descriptor");
  return *number;
}

std::vector<int> processors(const std::string& name, const std::string& value) {
  std::vector<int> numbers;
  for (const std::string& item : split_list(value)) {
    const auto number = parse_number<int>(item);
    if (!number || *number < 0) refuse(name, " has '", item, "', which is no processor");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

std::vector<std::string> WrapperOptions::arguments() const {
  std::vector<std::string> words;
  const auto add = [&](const char* name, const std::string& value) {
    words.emplace_back(name);
    words.push_back(value);
  };
  if (control >= 0) add("--control", std::to_string(control));
  if (output >= 0) add("--output", std::to_string(output));
  if (show_out) words.emplace_back("--show-out");
  if (show_err) words.emplace_back("--show-err");
  if (!log.empty()) add("--log", log);
  if (!cpus.empty()) {
    std::vector<std::string> numbers;
    for (const int cpu : cpus) numbers.push_back(std::to_string(cpu));
    add("--cpus", join_list(numbers));
  }
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

WrapperOptions parse_wrapper(const std::vector<std::string>& arguments) {
  WrapperOptions options;
  std::size_t i = 0;
  for (; i < arguments.size() && arguments[i].starts_with("--"); ++i) {
    const std::string& name = arguments[i];
    if (name == "--") {
      ++i;
      break;
    }
    if (name == "--show-out" || name == "--show-err") {
      (name == "--show-out" ? options.show_out : options.show_err) = true;
      continue;
    }
    if (i + 1 == arguments.size()) refuse("tutti rank: ", name, " needs a value");
    const std::string& value = arguments[++i];
    if (name == "--control") {
      options.control = descriptor(name, value);
    } else if (name == "--output") {
      options.output = descriptor(name, value);
    } else if (name == "--log") {
      options.log = value;
    } else if (name == "--cpus") {
      options.cpus = processors(name, value);
    } else {
      refuse("tutti rank has no option ", name);
    }
  }
  if (i == arguments.size()) refuse("tutti rank needs a program to run");
  options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (options.command.front().find('/') == std::string::npos) {
    options.command = resolve_program(options.command, false);
  }
  return options;
}

}  // namespace tutti::launch
