// Reads requests, and does what single ones ask for.
#include "ps/modes/stores.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "base/refuse.hpp"

namespace tutti::ps {
namespace {

/** `count` values of a payload, which is as long, as has been checked. */
template <class T>
std::span<const T> take(std::span<const std::byte>& payload, std::size_t count) {
  const auto bytes = payload.first(count * sizeof(T));
  payload = payload.subspan(bytes.size());
  return {reinterpret_cast<const T*>(bytes.data()), count};
}

void require_bytes(const RequestHeader& header, std::size_t each, std::size_t bytes) {
  const auto count = static_cast<std::size_t>(header.count);
  if (header.count >= 0 && bytes / each == count && bytes % each == 0) return;
  refuse("request ", static_cast<int>(header.kind), ": ", bytes, " bytes, which are not ",
         header.count, " times ", each);
}

}  // namespace

Answer Answer::with_text(Outcome outcome, std::string_view text, int number) {
  Answer answer{outcome, number, std::vector<std::byte>(text.size())};
  if (!text.empty()) std::memcpy(answer.payload.data(), text.data(), text.size());
  return answer;
}

Stores::Stores(std::vector<Table> tables, std::unique_ptr<DenseStore> dense)
    : tables_(std::move(tables)), dense_(std::move(dense)) {}

const Table& Stores::table(const RequestHeader& header) const {
  if (header.table < 0 || header.table >= std::ssize(tables_))
    refuse("request ", static_cast<int>(header.kind), ": there is no table ", header.table);
  return tables_[static_cast<std::size_t>(header.table)];
}

RowsOfRequest Stores::rows(const RequestHeader& header, std::span<const std::byte> payload) const {
  const auto dim = static_cast<std::size_t>(table(header).identity().spec.dim);
  const bool has_shows = (header.flags & kHasShows) != 0;
  const bool has_clicks = (header.flags & kHasClicks) != 0;
  require_bytes(header, sizeof(std::int64_t) + (dim + has_shows + has_clicks) * sizeof(float),
                payload.size());
  const auto count = static_cast<std::size_t>(header.count);
  RowsOfRequest rows;
  rows.ids = take<std::int64_t>(payload, count);
  rows.rows = take<float>(payload, count * dim).data();
  if (has_shows) rows.shows = take<float>(payload, count);
  if (has_clicks) rows.clicks = take<float>(payload, count);
  return rows;
}

std::span<const float> Stores::elements(const RequestHeader& header,
                                        std::span<const std::byte> payload) const {
  require_bytes(header, sizeof(float), payload.size());
  if (header.count != dense_->elements()) {
    refuse("request ", static_cast<int>(header.kind), ": ", header.count,
           " elements for blocks of ", dense_->elements());
  }
  return take<float>(payload, static_cast<std::size_t>(header.count));
}

std::vector<BlockGradient> Stores::gradients(const RequestHeader& header,
                                             std::span<const std::byte> payload) const {
  const auto count = static_cast<std::size_t>(header.count);
  if (header.count < 0 || count > payload.size() / sizeof(float) ||
      payload.size() % sizeof(std::int32_t) != 0) {
    refuse("push_dense: ", payload.size(), " bytes for ", header.count, " elements and blocks");
  }
  auto elements = take<float>(payload, count);
  const auto numbers = take<std::int32_t>(payload, payload.size() / sizeof(std::int32_t));
  const std::span<const OwnBlock> blocks = dense_->blocks();
  std::vector<bool> has(blocks.size());
  std::vector<BlockGradient> gradients;
  for (const std::int32_t number : numbers) {
    const auto at = static_cast<std::size_t>(number);
    if (number < 0 || at >= blocks.size() || has[at])
      refuse("push_dense: block ", number, " of ", blocks.size(), " is none, or comes twice");
    has[at] = true;
    const auto size = static_cast<std::size_t>(blocks[at].block.count);
    if (size > elements.size())
      refuse("push_dense: ", header.count, " elements are too few for its blocks");
    gradients.push_back({number, elements.first(size)});
    elements = elements.subspan(size);
  }
  if (!elements.empty()) {
    refuse("push_dense: ", header.count, " elements, of which ", elements.size(),
           " are no block's");
  }
  return gradients;
}

void Stores::apply(const Request& request, float scale) {
  const RequestHeader& header = request.header;
  switch (header.kind) {
    case RequestKind::push_rows:
    case RequestKind::add_rows: {
      const RowsOfRequest rows = this->rows(header, request.payload);
      const RowUpdates updates{rows.ids, rows.rows, scale,
                               rows.shows.empty() ? nullptr : rows.shows.data(),
                               rows.clicks.empty() ? nullptr : rows.clicks.data()};
      if (header.kind == RequestKind::push_rows) {
        update(header.table, updates);
      } else {
        tables_[static_cast<std::size_t>(header.table)].add(updates);
        rows_updated_ += std::ssize(rows.ids);
      }
      return;
    }
    case RequestKind::push_dense:
      for (const BlockGradient& gradient : gradients(header, request.payload))
        dense_->update(gradient, scale);
      return;
    case RequestKind::add_dense:
      dense_->add(elements(header, request.payload));
      return;
    case RequestKind::set_dense:
      dense_->set(elements(header, request.payload));
      return;
    default:
      refuse("request ", static_cast<int>(header.kind), " is no push");
  }
}

void Stores::update(int table, const RowUpdates& updates) {
  tables_[static_cast<std::size_t>(table)].update(updates);
  rows_updated_ += std::ssize(updates.ids);
}

void Stores::step(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    for (Table& table : tables_) table.step();
  }
}

Answer Stores::look_up(const Request& request) const {
  const Table& table = this->table(request.header);
  require_bytes(request.header, sizeof(std::int64_t), request.payload.size());
  std::span<const std::byte> payload = request.payload;
  const auto ids = take<std::int64_t>(payload, static_cast<std::size_t>(request.header.count));
  Answer answer;
  answer.payload.resize(ids.size() * static_cast<std::size_t>(table.identity().spec.dim) *
                        sizeof(float));
  table.lookup(ids, {}, reinterpret_cast<float*>(answer.payload.data()));
  return answer;
}

Answer Stores::pull_dense(const Request& request) const {
  require_bytes(request.header, sizeof(Range), request.payload.size());
  std::span<const std::byte> payload = request.payload;
  Answer answer;
  for (const Range& range : take<Range>(payload, static_cast<std::size_t>(request.header.count))) {
    const std::int64_t elements = dense_->elements();
    if (range.offset < 0 || range.count < 0 || range.offset > elements ||
        range.count > elements - range.offset) {
      refuse("pull_dense: element ", range.offset, " and ", range.count, " more of ", elements);
    }
    const auto values = std::as_bytes(dense_->values().subspan(
        static_cast<std::size_t>(range.offset), static_cast<std::size_t>(range.count)));
    answer.payload.insert(answer.payload.end(), values.begin(), values.end());
  }
  return answer;
}

}  // namespace tutti::ps
