// Broadcasts among the members of a group.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/memory.hpp"
#include "comm/hosts/group_ahead.hpp"
#include "comm/hosts/pipeline.hpp"

namespace tutti {

bool HostGroup::is_chain() const { return is_centred() && wire_.passes_on(members_); }

/** Each sends what comes on to the next one, before it has come as a whole: once the bytes a link.
 * What goes ahead of the agreement waits in the connection, so it needs no memory. */
void HostGroup::broadcast_chain(std::byte* data, std::int64_t bytes, int root,
                                const std::byte* from, const Agree& agree) {
  const bool is_root = position_ == root;
  const int next = peer(1);
  const std::int64_t first = agree ? std::min(bytes, kMostAhead) : 0;
  std::optional<Ahead> ahead;
  if (agree) {
    ahead.emplace(*this, first);
    if (is_root) send(*ahead, {from, static_cast<std::size_t>(first)}, next);
    agree();
  }
  Batch batch(wire_, Wire::Traffic::collective);
  const auto move = [&](std::int64_t begin, std::int64_t end) {
    const std::span part(data + begin, static_cast<std::size_t>(end - begin));
    if (is_root) return send(batch, {from + begin, part.size()}, next);
    const int source = peer(size() - 1);
    next == root ? recv(batch, part, source) : pass_on(batch, part, source, next);
  };
  if (!is_root) move(0, first);
  move(first, bytes);
  batch.wait();
  if (ahead) ahead->batch.wait();
}

void HostGroup::broadcast(std::byte* data, std::int64_t bytes, int root, const std::byte* from,
                          const Agree& agree) {
  const bool is_root = position_ == root;
  if (goes_straight(bytes)) {
    if (agree) agree();
    Batch batch(wire_, Wire::Traffic::collective);
    const auto length = static_cast<std::size_t>(bytes);
    for (int member = 0; member < size(); ++member) {
      if (is_root && member != root) send(batch, {from, length}, member);
      if (!is_root && member == root) recv(batch, {data, length}, root);
    }
    return batch.wait();
  }
  if (is_chain()) return broadcast_chain(data, bytes, root, from, agree);
  if (stand_in_groups()) {
    if (agree) agree();
    if (is_root) copy_bytes(data, from, bytes);
    return broadcast_grouped(data, bytes, root);
  }
  broadcast_shares(data, bytes, root, from, agree, Wire::Traffic::collective);
}

/**
 * Long messages where not all have connections: the root gives every other member a share, and they
 * pass it on to each other: once the bytes a link (scatter and all-gather, van de Geijn; see the
 * source above).
 */
void HostGroup::broadcast_shares(std::byte* data, std::int64_t bytes, int root,
                                 const std::byte* from, const Agree& agree, Wire::Traffic traffic) {
  const bool is_root = position_ == root;
  const Shards shards{data, even_offsets(bytes, root), window_for(size())};
  // Of a broadcast that goes ahead: the first window comes here.
  const Scratch memory(wire_.scratch(), agree && !is_root ? shards.window : 0);
  std::optional<Ahead> ahead;
  const auto give = [&](auto& batch, std::int64_t number) {
    for (int distance = 1; distance < size(); ++distance) {
      const auto part = shards.part(peer(distance), number);
      send(batch, {from + (part.data() - data), part.size()}, peer(distance));
    }
  };
  const auto scatter = [&](Batch& batch, std::int64_t number) {
    const auto own = shards.part(position_, number);
    if (number > 0 || !agree) return is_root ? give(batch, number) : recv(batch, own, root);
    ahead.emplace(*this, shards.window);
    is_root ? give(*ahead, number) : recv(*ahead, {memory.data(), own.size()}, root);
    agree();
  };
  const auto take = [&](std::int64_t number) {
    if (number > 0 || !ahead) return;
    ahead->batch.wait();
    const auto own = shards.part(position_, number);
    if (!is_root) copy_bytes(own.data(), memory.data(), std::ssize(own));
  };
  const auto pass_on = [&](Batch& batch, std::int64_t number) {
    if (is_root) return;
    for (int distance = 1; distance < size(); ++distance) {
      const int source = peer(size() - distance);
      if (source != root) recv(batch, shards.part(source, number), source);
      const int target = peer(distance);
      if (target != root) send(batch, shards.part(position_, number), target);
    }
  };
  run_pipeline(wire_, traffic, shards.windows(), Wire::kUnderWay, PipelineStep{scatter, take},
               PipelineStep{pass_on, kNothing});
}

}  // namespace tutti
