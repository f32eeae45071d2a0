// The table of what the ranks do.
#include "rig/work.hpp"

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "rig/processes.hpp"

namespace tutti::test {
namespace {

constexpr std::int64_t kSmall = 100;
constexpr std::int64_t kLarge = 1 << 20;  // 4 MiB of floats

/** Memory for an input and an output of `count` floats, on `comm` or of this process' own. */
class Pair {
 public:
  Pair(Communicator& comm, std::int64_t count, bool symmetric) : count_(count) {
    const std::int64_t bytes = 2 * count * size_of(DType::f32);
    if (symmetric) {
      symmetric_ = comm.allocate(bytes);
    } else {
      ordinary_.resize(static_cast<std::size_t>(2 * count));
    }
    data_ = symmetric ? static_cast<float*>(symmetric_.data()) : ordinary_.data();
  }
  View in(std::int64_t count) const { return {data_, count, DType::f32}; }
  View out(std::int64_t count) const { return {data_ + count_, count, DType::f32}; }

 private:
  std::int64_t count_;
  std::vector<float> ordinary_;
  Buffer symmetric_;
  float* data_ = nullptr;
};

using Step = std::function<void(Communicator&, const Pair&)>;

/** Work on memory for `count` floats. */
Work on_memory(std::string_view name, std::int64_t count, bool symmetric, const Step& step) {
  return {name, [=](Communicator& comm) -> std::function<void()> {
            const auto memory = std::make_shared<Pair>(comm, count, symmetric);
            return [&comm, memory, step] { step(comm, *memory); };
          }};
}

Step all_reduce(std::int64_t count) {
  return [=](auto& comm, auto& memory) { comm.all_reduce(memory.in(count), memory.out(count)); };
}

Step reduce(std::int64_t count) {
  return [=](auto& comm, auto& memory) {
    comm.reduce(memory.in(count), memory.out(count), comm.world_size() - 1);
  };
}

Step broadcast(std::int64_t count) {
  return [=](auto& comm, auto& memory) {
    comm.broadcast(memory.in(count), memory.out(count), comm.world_size() - 1);
  };
}

Step all_gather(std::int64_t count) {
  return [=](auto& comm, auto& memory) {
    const std::int64_t part = count / comm.world_size();
    comm.all_gather(memory.in(part), memory.out(part * comm.world_size()));
  };
}

Step all_gather_v(std::int64_t count) {
  return [=](auto& comm, auto& memory) {
    const auto ranks = static_cast<std::size_t>(comm.world_size());
    std::vector<std::int64_t> counts(ranks, count / 2 / comm.world_size());
    counts.front() = count / 2;  // all together at most `count`, for which there is room
    std::int64_t total = 0;
    for (const std::int64_t part : counts) total += part;
    const auto rank = static_cast<std::size_t>(comm.global_rank());
    comm.all_gather_v(memory.in(counts[rank]), memory.out(total), counts);
  };
}

Step reduce_scatter(std::int64_t count) {
  return [=](auto& comm, auto& memory) {
    const std::int64_t part = count / comm.world_size();
    comm.reduce_scatter(memory.in(part * comm.world_size()), memory.out(part));
  };
}

Step all_to_all(std::int64_t count) {
  return [=](auto& comm, auto& memory) {
    const std::int64_t whole = count / comm.world_size() * comm.world_size();
    comm.all_to_all(memory.in(whole), memory.out(whole));
  };
}

/** One element of `step`, all of them different on the ranks. */
Work sparse(std::string_view name, std::int64_t count, std::int64_t step) {
  return {name, [=](Communicator& comm) -> std::function<void()> {
            const auto memory = std::make_shared<Pair>(comm, count, false);
            std::vector<std::uint32_t> indices;
            for (std::int64_t i = comm.global_rank(); i < count; i += step) {
              indices.push_back(static_cast<std::uint32_t>(i));
            }
            return [&comm, memory, count, indices] {
              const auto entries = static_cast<std::int64_t>(indices.size());
              const auto* values = static_cast<const float*>(memory->in(entries).data);
              comm.sparse_all_reduce({indices.data(), values, entries}, memory->out(count));
            };
          }};
}

/** Each rank sends to the next one and receives from the one before. */
class Ring {
 public:
  Ring(Communicator& comm, std::int64_t count)
      : comm_(comm), count_(count), pair_(comm, count, false) {}

  void turn() const {
    const int size = comm_.world_size();
    const Event sent = comm_.send(pair_.in(count_), (comm_.global_rank() + 1) % size, 0, sending_);
    try {
      comm_.recv(pair_.out(count_), (comm_.global_rank() + size - 1) % size);
    } catch (const CommunicationError&) {
      sent.wait();  // whoever found out first, this throws PeerLost as well
      throw;
    }
    sent.wait();
  }

 private:
  Communicator& comm_;
  std::int64_t count_;
  Pair pair_;
  Stream sending_ = Stream::worker();  // goes first: a send that failed late still uses the rest
};

Work ring(std::string_view name, std::int64_t count) {
  return {name, [=](Communicator& comm) -> std::function<void()> {
            return [the_ring = std::make_shared<Ring>(comm, count)] { the_ring->turn(); };
          }};
}

/** Every rank sends to both of its neighbours in the ring, and receives from them. */
Work exchange(std::string_view name, std::int64_t count) {
  return on_memory(name, count, false, [=](auto& comm, auto& memory) {
    const int size = comm.world_size();
    const int next = (comm.global_rank() + 1) % size;
    const int previous = (comm.global_rank() + size - 1) % size;
    const std::int64_t half = count / 2;
    const std::vector<Message> messages{Message::send(memory.in(half), next),
                                        Message::send(memory.in(half), previous, 1),
                                        Message::recv(memory.out(half), previous),
                                        Message::recv(memory.out(count).part(half, half), next, 1)};
    comm.exchange(messages);
  });
}

const std::array<Work, 24>& table() {
  static const std::array<Work, 24> the_table{{
      on_memory("all_reduce", kSmall, false, all_reduce(kSmall)),
      on_memory("all_reduce, large", kLarge, false, all_reduce(kLarge)),
      on_memory("all_reduce, symmetric", kLarge, true, all_reduce(kLarge)),
      on_memory("reduce", kSmall, false, reduce(kSmall)),
      on_memory("reduce, large", kLarge, false, reduce(kLarge)),
      on_memory("broadcast", kSmall, false, broadcast(kSmall)),
      on_memory("broadcast, large", kLarge, false, broadcast(kLarge)),
      on_memory("broadcast, symmetric", kLarge, true, broadcast(kLarge)),
      on_memory("all_gather, large", kLarge, false, all_gather(kLarge)),
      on_memory("all_gather, symmetric", kLarge, true, all_gather(kLarge)),
      on_memory("all_gather_v, large", kLarge, false, all_gather_v(kLarge)),
      on_memory("reduce_scatter, large", kLarge, false, reduce_scatter(kLarge)),
      on_memory("reduce_scatter, symmetric", kLarge, true, reduce_scatter(kLarge)),
      on_memory("all_to_all", kSmall, false, all_to_all(kSmall)),
      on_memory("all_to_all, large", kLarge, false, all_to_all(kLarge)),
      sparse("sparse_all_reduce", kSmall, 7),
      sparse("sparse_all_reduce, large", kLarge, 7),
      {"barrier", [](Communicator& comm) { return [&comm] { comm.barrier(); }; }},
      ring("send and recv", kSmall),
      ring("send and recv, large", kLarge),
      exchange("exchange", kSmall),
      exchange("exchange, large", kLarge),
      {"allocate", [](Communicator& comm) { return [&comm] { comm.allocate(1 << 20); }; }},
      {"split",
       [](Communicator& comm) { return [&comm] { comm.split(comm.global_rank() % 2, 0); }; }},
  }};
  return the_table;
}

}  // namespace

std::span<const Work> all_work() { return table(); }

std::string work_until_lost(Communicator& communicator, const Work& work,
                            const std::function<void()>& before_each_call) {
  try {
    const std::function<void()> call = work.prepare(communicator);
    for (;;) {
      before_each_call();
      call();
    }
  } catch (const PeerLost& error) {
    return describe(error);
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

}  // namespace tutti::test
