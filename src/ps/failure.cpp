// Takes exceptions apart and makes them again.
#include "ps/failure.hpp"

#include <cerrno>
#include <new>
#include <system_error>

#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

/** The next line of `rest`, which loses it. */
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return line;
}

template <class Number>
Number number_of(std::string_view line) {
  return parse_number<Number>(line).value_or(0);
}

/** What SystemError was given: it adds the number's meaning itself. */
std::string without_meaning(std::string text, int error_number) {
  const std::string meaning = ": " + std::generic_category().message(error_number);
  if (text.ends_with(meaning)) text.resize(text.size() - meaning.size());
  return text;
}

}  // namespace

Failure Failure::of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const InvalidArgument& error) {
    return {Kind::invalid_argument, 0, {}, error.what()};
  } catch (const SystemError& error) {
    const int number = error.error_number();
    return {Kind::system, number, {}, without_meaning(error.what(), number)};
  } catch (const PeerLost& error) {
    return {Kind::lost, 0, error.ranks(), error.reason()};
  } catch (const MismatchError& error) {
    return {Kind::mismatch, 0, {}, error.what()};
  } catch (const std::bad_alloc&) {
    return {Kind::system, ENOMEM, {}, "cannot allocate memory"};
  } catch (const std::exception& error) {
    return {Kind::other, 0, {}, error.what()};
  }
}

Failure Failure::at(const std::string& who) const {
  Failure named = *this;
  named.text = who + ": " + text;
  return named;
}

void Failure::raise() const {
  switch (kind) {
    case Kind::invalid_argument:
      throw InvalidArgument(text);
    case Kind::system:
      throw SystemError(text, error_number);
    case Kind::lost:
      throw PeerLost(ranks, text);
    case Kind::mismatch:
      throw MismatchError(text);
    case Kind::other:
      break;
  }
  throw Error(text);
}

std::string Failure::encode() const {
  std::string bytes = std::to_string(static_cast<int>(kind)) + "\n" + std::to_string(error_number);
  for (const int rank : ranks) bytes += "\n" + std::to_string(rank);
  return bytes + "\n\n" + text;
}

Failure Failure::decode(std::string_view bytes) {
  Failure failure;
  const auto kind = number_of<unsigned>(take_line(bytes));
  if (kind < static_cast<unsigned>(Kind::other)) failure.kind = static_cast<Kind>(kind);
  failure.error_number = number_of<int>(take_line(bytes));
  for (auto line = take_line(bytes); !line.empty(); line = take_line(bytes)) {
    failure.ranks.push_back(number_of<int>(line));
  }
  failure.text = bytes;
  return failure;
}

}  // namespace tutti::ps
