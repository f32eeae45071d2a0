// What a worker asks of servers, and how their replies are taken.
#include "ps/modes/servers.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/refuse.hpp"
#include "device/cpu/kernels.hpp"
#include "ps/dense/layout.hpp"
#include "ps/dense/view.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kId = sizeof(std::int64_t);
constexpr std::int64_t kBlockNumber = sizeof(std::int32_t);
/** Copies of more bytes go past the caches, which is faster by then. */
constexpr std::int64_t kStreamed = std::int64_t{8} << 20U;

/** Writes what a payload consists of, one after the other. */
class PayloadWriter {
 public:
  explicit PayloadWriter(std::byte* payload) : to_(payload) {}

  template <class T>
  T* next(std::int64_t count) {
    return reinterpret_cast<T*>(std::exchange(to_, to_ + count * std::int64_t{sizeof(T)}));
  }

 private:
  std::byte* to_;
};

}  // namespace

void copy_floats(float* to, const float* from, std::int64_t count) {
  cpu::copy(to, from, count * kFloat, count * kFloat > kStreamed);
}

Asked& Asked::operator=(Asked&& other) noexcept {
  std::swap(link_, other.link_);
  std::swap(number_, other.number_);
  return *this;
}

Asked::~Asked() {
  if (link_ == nullptr) return;
  try {
    link_->forget(number_);
  } catch (const PeerLost&) {  // then there is nothing to forget
  }
}

Reply Asked::take() {
  Reply reply = link_->wait(number_);
  link_ = nullptr;
  return reply;
}

Servers::Servers(std::vector<ServerEnd> ends, std::vector<TableSpec> tables,
                 std::span<const DenseParameter> dense, std::vector<Name> workers)
    : ends_(std::move(ends)),
      tables_(std::move(tables)),
      workers_(std::move(workers)),
      pieces_(dense.size()),
      viewed_(dense.size()) {
  for (const DenseParameter& parameter : dense) {
    rules_.push_back(parameter.rule);
    names_.push_back(parameter.name);
  }
  for (int server = 0; server < count(); ++server) {
    std::int64_t offset = 0;
    const std::vector<Block>& blocks = end(server).blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      offset = begin_of(blocks[i], offset);
      pieces_[static_cast<std::size_t>(blocks[i].parameter)].push_back(
          {server, i, blocks[i].offset, offset, blocks[i].count});
      offset += blocks[i].count;
    }
    elements_.push_back(offset);
    all_on_this_host_ = all_on_this_host_ && link(server).on_this_host();
  }
}

void Servers::look_up(int table, std::span<const std::int64_t> ids, float* rows) {
  counters_.rows_looked_up += std::ssize(ids);
  if (all_on_this_host_ && count() == 1) {
    link(0).check();
    counters_.torn_rows += end(0).tables[static_cast<std::size_t>(table)].lookup(ids, {}, rows);
    return;
  }
  const auto is_this = [&](const Lookup& lookup) {
    return lookup.table == table && std::ranges::equal(lookup.own_ids, ids);
  };
  std::unique_lock lock(prefetching_);
  const auto found = std::ranges::find_if(prefetched_, is_this);
  if (found == prefetched_.end()) {
    lock.unlock();
    finish(begin_look_up(table, ids), ids, rows);
    return;
  }
  Lookup lookup = std::move(*found);
  prefetched_.erase(found);
  lock.unlock();
  finish(std::move(lookup), ids, rows);
}

Servers::Lookup Servers::begin_look_up(int table, std::span<const std::int64_t> ids) {
  Lookup lookup{.table = table,
                .own_ids = {},
                .split = IdSplit(ids, this->table(table).split, count(), std::nullopt),
                .asked = {}};
  lookup.asked.resize(ends_.size());
  for (int server = 0; server < count(); ++server) {
    const IdShare share = lookup.split.share(server);
    if (share.ids.empty()) continue;
    Link& link = this->link(server);
    link.check();
    if (link.on_this_host()) continue;
    const RequestHeader header{.kind = RequestKind::look_up,
                               .table = table,
                               .count = std::ssize(share.ids),
                               .payload_bytes = std::ssize(share.ids) * kId};
    const Draft draft = link.draft(header.payload_bytes);
    std::memcpy(draft.payload.data(), share.ids.data(), share.ids.size_bytes());
    lookup.asked[static_cast<std::size_t>(server)] = {link, link.send(header, draft)};
  }
  return lookup;
}

void Servers::finish(Lookup lookup, std::span<const std::int64_t> ids, float* rows) {
  const std::int64_t dim = table(lookup.table).dim;
  for (int server = 0; server < count(); ++server) {
    const IdShare share = lookup.split.share(server);
    if (share.ids.empty() || !link(server).on_this_host()) continue;
    const TableReader& reader = end(server).tables[static_cast<std::size_t>(lookup.table)];
    counters_.torn_rows += reader.lookup(share.ids, share.positions, rows);
  }
  for (int server = 0; server < count(); ++server) {
    Asked& asked = lookup.asked[static_cast<std::size_t>(server)];
    if (!asked) continue;
    const IdShare share = lookup.split.share(server);
    const Reply reply = take(server, asked);
    const auto row = static_cast<std::size_t>(dim * kFloat);
    if (reply.payload.size() != share.ids.size() * row) {
      throw Error(end(server).name.text + ": a reply of " + std::to_string(reply.payload.size()) +
                  " bytes for " + std::to_string(share.ids.size()) + " rows");
    }
    const std::byte* from = reply.payload.data();
    if (share.positions.empty()) {
      std::memcpy(rows, from, ids.size() * row);
      continue;
    }
    for (const std::int64_t position : share.positions) {
      std::memcpy(rows + position * dim, from, row);
      from += row;
    }
  }
}

void Servers::prefetch(int table, std::span<const std::int64_t> ids) {
  constexpr std::size_t kMost = 8;  // that nobody has asked for yet; then the oldest go
  std::vector<std::int64_t> own(ids.begin(), ids.end());
  Lookup lookup = begin_look_up(table, own);
  for (int server = 0; server < count(); ++server) {
    const IdShare share = lookup.split.share(server);
    if (link(server).on_this_host() && !share.ids.empty())
      end(server).tables[static_cast<std::size_t>(table)].prefetch(share.ids);
  }
  if (all_on_this_host_) return;
  lookup.own_ids = std::move(own);
  const std::lock_guard lock(prefetching_);
  prefetched_.push_back(std::move(lookup));
  if (prefetched_.size() > kMost) prefetched_.pop_front();
}

void Servers::renew_prefetched() {
  std::deque<Lookup> old;
  {
    const std::lock_guard lock(prefetching_);
    old.swap(prefetched_);
  }
  for (const Lookup& lookup : old) prefetch(lookup.table, lookup.own_ids);
}

void Servers::age_prefetched() {
  constexpr int kMostSteps = 8;
  std::deque<Lookup> old;  // forgotten without the lock
  const std::lock_guard lock(prefetching_);
  for (Lookup& lookup : prefetched_) ++lookup.steps;
  while (!prefetched_.empty() && prefetched_.front().steps > kMostSteps) {
    old.push_back(std::move(prefetched_.front()));
    prefetched_.pop_front();
  }
}

Asked Servers::begin_pull(const Piece& piece, float* to) {
  Link& link = this->link(piece.server);
  link.check();
  if (link.on_this_host()) {
    copy_floats(to, end(piece.server).dense->values().data() + piece.in_server, piece.count);
    return {};
  }
  const Range range{piece.in_server, piece.count};
  const RequestHeader header{
      .kind = RequestKind::pull_dense, .count = 1, .payload_bytes = sizeof(range)};
  const Draft draft = link.draft(header.payload_bytes);
  std::memcpy(draft.payload.data(), &range, sizeof(range));
  return {link, link.send(header, draft)};
}

void Servers::finish_pull(const Piece& piece, Asked& asked, float* to) const {
  if (!asked) return;
  const Reply reply = take(piece.server, asked);
  if (std::ssize(reply.payload) != piece.count * kFloat) {
    throw Error(end(piece.server).name.text + ": a reply of " +
                std::to_string(reply.payload.size()) + " bytes for " + std::to_string(piece.count) +
                " elements");
  }
  std::memcpy(to, reply.payload.data(), reply.payload.size());
}

void Servers::pull_dense(int parameter, float* value) {
  std::vector<Asked> asked;
  for (const Piece& piece : pieces(parameter))
    asked.push_back(begin_pull(piece, value + piece.in_parameter));
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Piece& piece = pieces(parameter)[i];
    finish_pull(piece, asked[i], value + piece.in_parameter);
  }
}

DenseView Servers::view_dense(int parameter) {
  std::vector<Piece> ordered(pieces(parameter).begin(), pieces(parameter).end());
  std::ranges::sort(ordered, {}, &Piece::in_parameter);
  std::vector<std::span<const float>> parts;
  std::size_t elements = 0;
  for (const Piece& piece : ordered) {
    const ServerEnd& end = this->end(piece.server);
    end.link->check();
    if (!end.link->on_this_host()) {
      refuse("view_dense: ", end.blocks[piece.block].name,
             " is in the memory of another host: ", end.name.text);
    }
    parts.push_back(end.dense->values().subspan(static_cast<std::size_t>(piece.in_server),
                                                static_cast<std::size_t>(piece.count)));
    elements += parts.back().size();
  }
  const std::lock_guard lock(viewing_);
  auto& viewed = viewed_[static_cast<std::size_t>(parameter)];
  std::shared_ptr<const shm::Mapping> memory = viewed.lock();
  if (!memory) viewed = memory = map_again(parts, shm::Access::read_only);
  const auto* const values = reinterpret_cast<const float*>(memory->base());
  return {std::move(memory), {values, elements}};
}

void Servers::pull_blocks(int server, float* values) {
  const Piece all{server, 0, 0, 0, elements(server)};
  Asked asked = begin_pull(all, values);
  finish_pull(all, asked, values);
}

Drafted Servers::draft_rows(int server, RequestKind kind, int table, const RowPush& push,
                            const IdShare& share, float scale, std::int64_t round) const {
  const std::int64_t count = std::ssize(share.ids);
  const std::int64_t dim = this->table(table).dim;
  const bool has_shows = push.shows != nullptr;
  const bool has_clicks = push.clicks != nullptr;
  const int flags = (has_shows ? kHasShows : 0) | (has_clicks ? kHasClicks : 0);
  Drafted drafted(link(server),
                  {.kind = kind,
                   .flags = static_cast<std::uint8_t>(flags),
                   .table = table,
                   .count = count,
                   .round = round,
                   .payload_bytes = count * (kId + (dim + has_shows + has_clicks) * kFloat)});
  PayloadWriter payload(drafted.payload());
  std::memcpy(payload.next<std::int64_t>(count), share.ids.data(), share.ids.size_bytes());
  auto* const rows = payload.next<float>(count * dim);
  gather(push.rows, share.positions, count, dim, rows);
  if (scale != 1.0F)
    std::transform(rows, rows + count * dim, rows, [=](float x) { return x * scale; });
  if (has_shows) gather(push.shows, share.positions, count, 1, payload.next<float>(count));
  if (has_clicks) gather(push.clicks, share.positions, count, 1, payload.next<float>(count));
  return drafted;
}

Asked Servers::send_rows(Drafted& rows) {
  Asked asked = rows.send();
  ++counters_.pushes;
  counters_.rows_pushed += rows.header.count;
  return asked;
}

void Servers::send_values(int server, RequestKind kind, std::span<const float> values,
                          std::int64_t round) {
  Link& link = this->link(server);
  const RequestHeader header{.kind = kind,
                             .count = std::ssize(values),
                             .round = round,
                             .payload_bytes = std::ssize(values) * kFloat};
  const Draft draft = link.draft(header.payload_bytes);
  copy_floats(reinterpret_cast<float*>(draft.payload.data()), values.data(), std::ssize(values));
  link.forget(link.send(header, draft));
  if (kind != RequestKind::set_dense) ++counters_.pushes;
}

Draft Servers::draft_gradients(int server) const {
  return link(server).draft(elements(server) * kFloat +
                            std::ssize(end(server).blocks) * kBlockNumber);
}

std::uint64_t Servers::push_gradients(int server, const Draft& draft, std::int64_t count,
                                      std::span<const std::int32_t> blocks, std::int64_t round) {
  const RequestHeader header{.kind = RequestKind::push_dense,
                             .count = count,
                             .round = round,
                             .payload_bytes = count * kFloat + std::ssize(blocks) * kBlockNumber};
  std::memcpy(draft.payload.data() + count * kFloat, blocks.data(), blocks.size_bytes());
  Link& link = this->link(server);
  const std::uint64_t request = link.send(header, draft);
  link.forget(request);
  ++counters_.pushes;
  return request;
}

Draft Servers::draft_block(int server, std::int64_t count) const {
  Draft draft = link(server).draft(count * kFloat + kBlockNumber);
  draft.stays = true;
  return draft;
}

std::uint64_t Servers::push_block(int server, const Draft& draft, std::int32_t block,
                                  std::int64_t round) {
  const std::int64_t count = end(server).blocks[static_cast<std::size_t>(block)].count;
  return push_gradients(server, draft, count, std::span(&block, 1), round);
}

Asked Servers::ask(int server, RequestHeader header, std::string_view text) {
  Link& link = this->link(server);
  header.payload_bytes = std::ssize(text);
  const Draft draft = link.draft(header.payload_bytes);
  if (!text.empty()) std::memcpy(draft.payload.data(), text.data(), text.size());
  return {link, link.send(header, draft)};
}

void Servers::make_room(int server, std::int64_t requests) {
  if (link(server).has_room(requests)) return;
  Asked all = ask(server, {.kind = RequestKind::answer_all});
  take(server, all);
}

void Servers::require_presence(std::chrono::milliseconds waited) const {
  for (int server = 0; server < count(); ++server) link(server).ask_presence();
  for (int server = 0; server < count(); ++server) link(server).await_presence(waited);
}

Reply Servers::take(int server, Asked& asked) const {
  Reply reply = asked.take();
  throw_unless_done(server, reply);
  return reply;
}

Reply Servers::wait(int server, Asked& asked, const RequestHeader& header) {
  Reply reply = asked.take();
  while (reply.header.outcome == Outcome::not_yet) {
    asked = ask(server, header);
    reply = asked.take();
  }
  return reply;
}

void Servers::throw_refusal(int server) const { throw_unless_done(server, link(server).refusal()); }

void Servers::throw_unless_done(int server, const Reply& reply) const {
  if (reply.header.outcome == Outcome::done) return;
  const std::string text(reinterpret_cast<const char*>(reply.payload.data()), reply.payload.size());
  if (reply.header.outcome == Outcome::no_memory)
    throw SystemError(end(server).name.text + (text.empty() ? "" : ": " + text), ENOMEM);
  if (reply.header.outcome == Outcome::lost_worker) {
    const Name& worker = workers_.at(static_cast<std::size_t>(reply.header.number));
    throw PeerLost({worker.rank}, worker.text + ": " + text);
  }
  if (reply.header.outcome == Outcome::too_late)
    throw DeadlineExceeded(end(server).name.text + ": " + text);
  if (reply.header.outcome == Outcome::mismatch)
    throw MismatchError(end(server).name.text + ": " + text);
  throw Error(end(server).name.text + ": " + text);
}

}  // namespace tutti::ps
