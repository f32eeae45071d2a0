// Writes JSON.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace tutti {

/** Appends `value` as a JSON string, with its quotation marks. */
void append_json(std::string& text, std::string_view value);

/** A JSON text, member by member; what is begun is ended by the caller. Objects begin on a line of
 * their own. */
class JsonWriter {
 public:
  void begin_object() {
    if (!first_) text_ += ',';
    if (!text_.empty()) text_ += '\n';
    open('{');
  }
  void end_object() { close('}'); }
  void begin_array(std::string_view name) {
    key(name);
    open('[');
  }
  void end_array() { close(']'); }

  void member(std::string_view name, std::string_view value) {
    key(name);
    append_json(text_, value);
  }
  void member(std::string_view name, std::integral auto value) {
    key(name);
    text_ += std::to_string(value);
  }

  const std::string& text() const { return text_; }

 private:
  void key(std::string_view name) {
    if (!first_) text_ += ", ";
    first_ = false;
    append_json(text_, name);
    text_ += ": ";
  }
  void open(char bracket) {
    text_ += bracket;
    first_ = true;
  }
  void close(char bracket) {
    text_ += bracket;
    first_ = false;
  }

  std::string text_;
  bool first_ = true;
};

}  // namespace tutti
