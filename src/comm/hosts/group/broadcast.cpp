// Broadcasts straight from the root, from member to member, and in shares.
#include "comm/hosts/group/broadcast.hpp"

#include <algorithm>
#include <optional>
#include <span>

#include "base/memory.hpp"
#include "comm/hosts/group/grouped.hpp"
#include "comm/hosts/group/pipeline.hpp"
#include "comm/hosts/group/shards.hpp"

namespace tutti {
namespace {

/** So much of a broadcast from member to member goes ahead of its agreement: in pieces that are all
 * posted at once. */
constexpr std::int64_t kMostAhead = Wire::kLongPiece;

/** Each sends what comes on to the next one, before it has come as a whole: once the bytes a link.
 * What goes ahead of the agreement waits in the connection, so it needs no memory. */
void broadcast_chain(const HostGroup& group, int root, std::byte* data, std::int64_t bytes,
                     const std::byte* from, const Agree& agree) {
  const bool is_root = group.position() == root;
  const int next = group.peer(1);
  const std::int64_t first = agree ? std::min(bytes, kMostAhead) : 0;
  std::optional<Ahead> ahead;
  if (agree) {
    ahead.emplace(group, first);
    if (is_root) ahead->send({from, static_cast<std::size_t>(first)}, next);
    agree(&*ahead);
  }
  GroupBatch batch(group, Wire::Traffic::collective);
  const auto move = [&](std::int64_t begin, std::int64_t end) {
    const std::span part(data + begin, static_cast<std::size_t>(end - begin));
    if (is_root) return batch.send({from + begin, part.size()}, next);
    const int source = group.peer(group.size() - 1);
    next == root ? batch.recv(part, source) : batch.pass_on(part, source, next);
  };
  if (!is_root) move(0, first);
  move(first, bytes);
  batch.wait();
  if (ahead) ahead->batch.wait();
}

}  // namespace

bool broadcasts_in_chain(const HostGroup& group) { return group.is_centred() && group.passes_on(); }

void broadcast_from(const HostGroup& group, int root, std::byte* data, std::int64_t bytes,
                    const std::byte* from, const Agree& agree) {
  const bool is_root = group.position() == root;
  if (group.size() <= 2 || group.goes_whole(bytes)) {  // all of it from the root itself
    if (agree) agree(nullptr);
    GroupBatch batch(group, Wire::Traffic::collective);
    const auto length = static_cast<std::size_t>(bytes);
    for (int member = 0; member < group.size(); ++member) {
      if (is_root && member != root) batch.send({from, length}, member);
      if (!is_root && member == root) batch.recv({data, length}, root);
    }
    return batch.wait();
  }
  if (broadcasts_in_chain(group)) return broadcast_chain(group, root, data, bytes, from, agree);
  if (group.stand_in_groups()) {
    if (agree) agree(nullptr);
    if (is_root) copy_bytes(data, from, bytes);
    return broadcast_grouped(group, root, data, bytes);
  }
  broadcast_shares(group, root, data, bytes, from, agree, Wire::Traffic::collective);
}

void broadcast_shares(const HostGroup& group, int root, std::byte* data, std::int64_t bytes,
                      const std::byte* from, const Agree& agree, Wire::Traffic traffic) {
  const bool is_root = group.position() == root;
  const Shards shards{data, even_offsets(bytes, group.size(), root), window_for(group.size())};
  // Of a broadcast that goes ahead: the first window comes here.
  const Scratch memory(group.wire().scratch(), agree && !is_root ? shards.window : 0);
  std::optional<Ahead> ahead;
  const auto give = [&](auto& messages, std::int64_t number) {
    group.in_turns([&](int /*source*/, int target) {
      const auto part = shards.part(target, number);
      messages.send({from + (part.data() - data), part.size()}, target);
    });
  };
  const auto scatter = [&](GroupBatch& batch, std::int64_t number) {
    const auto own = shards.part(group.position(), number);
    if (number > 0 || !agree) return is_root ? give(batch, number) : batch.recv(own, root);
    ahead.emplace(group, shards.window);
    is_root ? give(*ahead, number) : ahead->recv({memory.data(), own.size()}, root);
    agree(&*ahead);
  };
  const auto take = [&](std::int64_t number) {
    if (number > 0 || !ahead) return;
    ahead->batch.wait();
    const auto own = shards.part(group.position(), number);
    if (!is_root) copy_bytes(own.data(), memory.data(), std::ssize(own));
  };
  const auto pass_on = [&](GroupBatch& batch, std::int64_t number) {
    if (is_root) return;
    group.in_turns([&](int source, int target) {
      if (source != root) batch.recv(shards.part(source, number), source);
      if (target != root) batch.send(shards.part(group.position(), number), target);
    });
  };
  run_pipeline(group, traffic, shards.windows(), Wire::kUnderWay, PipelineStep{scatter, take},
               PipelineStep{pass_on, kNothing});
}

}  // namespace tutti
