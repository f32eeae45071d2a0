// What an action throws, for tests that look at the text.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace tutti::test {

/** The text of the Error that `action` throws; a failure of the test if it throws another, or none.
 */
template <class Error, class Action>
std::string text_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw something else: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

}  // namespace tutti::test
