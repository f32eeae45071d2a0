// What a server tells the workers that it meets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ps/failure.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::ps {

struct Greeting {
  /** What its shared memory is named by. */
  UniqueId memory = UniqueId::create();
  std::optional<std::int64_t> loaded;  ///< it has begun with a checkpoint, of this round
  std::optional<Failure> failure;      ///< why it cannot start

  std::string table_segment(std::size_t table) const;
  std::string dense_segment() const;

  std::string encode() const;
  /** Throws CommunicationError for what is none. */
  static Greeting decode(std::string_view text);
};

}  // namespace tutti::ps
