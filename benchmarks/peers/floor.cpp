// Sums and broadcasts over bare TCP sockets: what any library between these hosts has to spend.
#include <arpa/inet.h>
#include <fcntl.h>
#include <mpi.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peers/peer.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw Error(std::string("floor: ") + what + ": " + std::strerror(errno));
}

/** A file descriptor that closes itself. */
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) { require(number >= 0, "a descriptor"); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

/** Memory of all ranks of a host, zero at first. Its name is gone once all have it. */
class Shared {
 public:
  Shared(std::size_t bytes, MPI_Comm host) : bytes_(bytes) {
    long owner = ::getpid();
    MPI_Bcast(&owner, 1, MPI_LONG, 0, host);
    const std::string name = "/floor-" + std::to_string(owner);
    const Descriptor file(::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600));
    require(::ftruncate(file.number(), static_cast<off_t>(bytes)) == 0, "ftruncate");
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    require(memory_ != MAP_FAILED, "mmap");
    MPI_Barrier(host);
    ::shm_unlink(name.c_str());
    MPI_Barrier(host);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(memory_, bytes_); }
  char* at(std::size_t offset) const { return static_cast<char*>(memory_) + offset; }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

/** What is left of one direction of a connection: two stretches, one after the other. */
struct Stretches {
  std::array<char*, 2> data{};
  std::array<std::size_t, 2> left{};

  /** Moves what the socket takes, or has, of what is `allowed` of the second; whether it was any.
   */
  template <class Call>
  bool move(const Call& call, std::size_t withheld) {
    const std::size_t which = left[0] > 0 ? 0 : 1;
    const std::size_t length = left[which] - (which == 1 ? std::min(withheld, left[1]) : 0);
    if (length == 0) return false;
    const ssize_t moved = call(data[which], length);
    require(moved > 0 || (moved < 0 && errno == EAGAIN), "the other end");
    if (moved < 0) return false;
    data[which] += moved;
    left[which] -= static_cast<std::size_t>(moved);
    return true;
  }
  bool done() const { return left[0] + left[1] == 0; }
};

enum class Order : std::uint8_t { whole, centred, shards };

class FloorPeer final : public Peer {
 public:
  FloorPeer() {
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host_);
    MPI_Comm_rank(host_, &local_);
    MPI_Comm_size(host_, &locals_);
    MPI_Comm_split(MPI_COMM_WORLD, local_, 0, &across_);
    MPI_Comm_rank(across_, &self_);
    MPI_Comm_size(across_, &hosts_);
    connect();
  }
  FloorPeer(const FloorPeer&) = delete;
  FloorPeer& operator=(const FloorPeer&) = delete;
  ~FloorPeer() override {
    MPI_Comm_free(&across_);
    MPI_Comm_free(&host_);
  }

  std::vector<bench::Way> ways(const Call& call) override {
    if (call.op == Op::broadcast || call.op == Op::broadcast_round) return broadcasts(call);
    if (call.op != Op::all_reduce || call.in.dtype != DType::f32) return {};
    const auto bytes = static_cast<std::size_t>(call.in.bytes());
    const auto locals = static_cast<std::size_t>(locals_);
    const auto shared = std::make_shared<Shared>(kLine * locals + bytes * (locals + 1), host_);
    const auto scratch = std::make_shared<std::vector<char>>(bytes * (sockets_.size() + 1));
    const auto way = [&](const char* name, Order kind, int workers) {
      return bench::Way{name, [=, this, data = static_cast<char*>(call.out.data)] {
                          run(data, bytes, kind, workers, *shared, scratch->data());
                        }};
    };
    if (bytes <= kShort) {
      return {way("whole", Order::whole, 1), way("centred", Order::centred, 1)};
    }
    std::vector<bench::Way> ways{way("shards", Order::shards, 1)};
    if (locals_ > 1) ways.push_back(way("shards_each", Order::shards, locals_));
    return ways;
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kShort = 4096;
  static constexpr std::size_t kStep = 64 << 10;  // is added at once

  std::vector<bench::Way> broadcasts(const Call& call) {
    const auto bytes = static_cast<std::size_t>(call.in.bytes());
    const auto locals = static_cast<std::size_t>(locals_);
    const auto shared = std::make_shared<Shared>(kLine * locals + 2 * bytes, host_);
    const auto number = std::make_shared<std::size_t>(0);  // of the broadcast
    const int roots = call.op == Op::broadcast ? 1 : hosts_ * locals_;
    const auto way = [&](const char* name, bool chain) {
      return bench::Way{name, [=, this, data = static_cast<char*>(call.out.data)] {
                          for (int root = 0; root < roots; ++root) {
                            pass(data, bytes, root, chain, (*number)++, *shared);
                          }
                        }};
    };
    return {way("direct", false), way("chain", true)};
  }

  /** A connection between every two ranks of one number on their hosts. */
  void connect() {
    std::array<char, 256> name{};
    require(::gethostname(name.data(), name.size() - 1) == 0, "gethostname");
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    require(::getaddrinfo(name.data(), nullptr, &hints, &found) == 0, "the host's name");
    sockaddr_in own{};
    std::memcpy(&own, found->ai_addr, sizeof own);
    ::freeaddrinfo(found);
    const Descriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
    socklen_t length = sizeof own;
    auto* const address = reinterpret_cast<sockaddr*>(&own);
    require(::bind(listener.number(), address, length) == 0, "bind");
    require(::listen(listener.number(), hosts_) == 0, "listen");
    require(::getsockname(listener.number(), address, &length) == 0, "getsockname");
    std::vector<sockaddr_in> all(static_cast<std::size_t>(hosts_));
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, across_);
    // In this order, so that nobody need say its number.
    for (int peer = 0; peer < hosts_; ++peer) {
      for (int caller = peer + 1; caller < hosts_; ++caller) {
        if (self_ == peer) sockets_.emplace_back(::accept(listener.number(), nullptr, nullptr));
        if (self_ == caller) {
          sockets_.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
          auto* const target = reinterpret_cast<sockaddr*>(&all[static_cast<std::size_t>(peer)]);
          require(::connect(sockets_.back().number(), target, sizeof own) == 0, "connect");
        }
        MPI_Barrier(across_);
      }
    }
    for (const Descriptor& socket : sockets_) {
      const int on = 1;
      require(::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0,
              "TCP_NODELAY");
    }
  }

  static void add(char* to, const char* from, std::size_t bytes) {
    auto* const sums = reinterpret_cast<float*>(to);
    const auto* const terms = reinterpret_cast<const float*>(from);
    for (std::size_t i = 0; i < bytes / sizeof(float); ++i) sums[i] += terms[i];
  }

  /** Waits for all ranks of the host. */
  void meet(const Shared& shared) {
    const auto count = [&](int rank) {
      return std::atomic_ref(
          *reinterpret_cast<std::uint64_t*>(shared.at(kLine * static_cast<std::size_t>(rank))));
    };
    const std::uint64_t now = count(local_).fetch_add(1) + 1;
    for (int rank = 0; rank < locals_; ++rank) {
      while (count(rank).load(std::memory_order_acquire) < now) ::sched_yield();
    }
  }

  const Descriptor& socket_to(int host) const {
    return sockets_[static_cast<std::size_t>(host - (host > self_ ? 1 : 0))];
  }

  template <class Call>
  static void move_all(char* data, std::size_t bytes, const Call& call) {
    while (bytes > 0) {
      const ssize_t moved = call(data, bytes);
      require(moved > 0 || (moved < 0 && errno == EAGAIN), "the other end");
      if (moved < 0) {
        ::sched_yield();
        continue;
      }
      data += moved;
      bytes -= static_cast<std::size_t>(moved);
    }
  }

  /** A broadcast of rank `root`, on whose number on their hosts the ranks depend that pass it on:
   * the root sends it to all other hosts, or each host to the next. Two places take turns, so the
   * ranks of a host meet once. */
  void pass(char* data, std::size_t bytes, int root, bool chain, std::size_t number,
            const Shared& shared) {
    const int from = root / locals_;
    const int own = (self_ - from + hosts_) % hosts_;
    if (local_ == root % locals_) {
      if (own > 0) {
        const int giver = chain ? (self_ - 1 + hosts_) % hosts_ : from;
        const int socket = socket_to(giver).number();
        move_all(data, bytes,
                 [&](char* at, std::size_t n) { return ::recv(socket, at, n, MSG_DONTWAIT); });
      }
      const int takers = chain ? (own + 1 < hosts_ ? 1 : 0) : (own == 0 ? hosts_ - 1 : 0);
      for (int taker = 1; taker <= takers; ++taker) {
        const int socket = socket_to((self_ + taker) % hosts_).number();
        move_all(data, bytes, [&](char* at, std::size_t n) {
          return ::send(socket, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        });
      }
    }
    if (locals_ == 1) return;
    char* const place = shared.at(kLine * static_cast<std::size_t>(locals_) + number % 2 * bytes);
    if (local_ == root % locals_) std::memcpy(place, data, bytes);
    meet(shared);
    if (local_ != root % locals_) std::memcpy(data, place, bytes);
  }

  /** The first `workers` ranks of a host exchange a slice each. */
  void run(char* data, std::size_t bytes, Order way, int workers, const Shared& shared,
           char* scratch) {
    const auto begin = [&](int worker) {
      return bytes * static_cast<std::size_t>(std::min(worker, workers)) /
                 static_cast<std::size_t>(workers) / kLine * kLine +
             (worker >= workers ? bytes % kLine : 0);
    };
    const std::size_t from = begin(local_);
    const std::size_t length = begin(local_ + 1) - from;
    char* const brought = shared.at(kLine * static_cast<std::size_t>(locals_));
    char* const results = brought + bytes * static_cast<std::size_t>(locals_);
    const auto copy_others = [&](char* to, const char* source) {
      std::memcpy(to, source, from);
      std::memcpy(to + from + length, source + from + length, bytes - from - length);
    };
    if (locals_ > 1) {
      copy_others(brought + bytes * static_cast<std::size_t>(local_), data);
      meet(shared);
      for (int rank = 0; rank < locals_ && length > 0; ++rank) {
        if (rank == local_) continue;
        add(data + from, brought + bytes * static_cast<std::size_t>(rank) + from, length);
      }
    }
    if (length > 0) exchange(data + from, length, way, scratch);
    if (locals_ == 1) return;
    std::memcpy(results + from, data + from, length);
    meet(shared);
    copy_others(data, results);
  }

  void exchange(char* data, std::size_t bytes, Order way, char* scratch) {
    const auto shard = [&](int host) {
      return bytes / kLine * static_cast<std::size_t>(host) / static_cast<std::size_t>(hosts_) *
                 kLine +
             (host == hosts_ ? bytes % kLine : 0);
    };
    const bool cuts = way == Order::shards;
    const bool centre = way == Order::centred && self_ == 0;
    const bool asks = way == Order::centred && self_ != 0;
    // Of what all bring to this host: what it adds, and sends back if it owns it.
    char* const own = cuts ? data + shard(self_) : data;
    const std::size_t length = asks ? 0 : cuts ? shard(self_ + 1) - shard(self_) : bytes;
    const std::size_t answers = cuts || centre ? length : 0;
    char* const sums = way == Order::whole ? scratch + bytes * sockets_.size() : own;
    std::vector<Stretches> out(sockets_.size());
    std::vector<Stretches> in(sockets_.size());
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      const int host = static_cast<int>(i) + (static_cast<int>(i) >= self_ ? 1 : 0);
      if (asks && host != 0) continue;
      char* const theirs = cuts ? data + shard(host) : data;
      const std::size_t share = cuts ? shard(host + 1) - shard(host) : centre ? 0 : bytes;
      out[i] = {{theirs, own}, {share, answers}};
      in[i] = {{scratch + bytes * i, theirs}, {length, cuts || asks ? share : 0}};
    }
    std::size_t added = 0;
    for (bool done = false; !done;) {
      bool moved = false;
      done = true;
      std::size_t come = length;
      for (std::size_t turn = 0; turn < sockets_.size(); ++turn) {
        // From the next host on: if all began with the first one, its link would hold up all.
        const std::size_t i = (static_cast<std::size_t>(self_) + turn) % sockets_.size();
        const int socket = sockets_[i].number();
        moved |= out[i].move(
            [&](char* at, std::size_t n) {
              return ::send(socket, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
            },
            length - added);
        moved |= in[i].move(
            [&](char* at, std::size_t n) { return ::recv(socket, at, n, MSG_DONTWAIT); }, 0);
        done = done && out[i].done() && in[i].done();
        come = std::min(come, length - in[i].left[0]);
      }
      if (come == length || come - added >= kStep) {
        come = come / sizeof(float) * sizeof(float);
        if (way == Order::whole) std::memcpy(sums + added, own + added, come - added);
        for (std::size_t i = 0; i < sockets_.size(); ++i) {
          add(sums + added, scratch + bytes * i + added, come - added);
        }
        added = come;
      }
      if (!moved && !done) ::sched_yield();
    }
    if (way == Order::whole) std::memcpy(data, sums, bytes);
  }

  MPI_Comm host_ = MPI_COMM_NULL;
  MPI_Comm across_ = MPI_COMM_NULL;
  int local_ = 0;
  int locals_ = 1;
  int self_ = 0;
  int hosts_ = 1;
  std::vector<Descriptor> sockets_;  // to the other hosts, in their order
};

}  // namespace

std::unique_ptr<Peer> make_floor_peer() { return std::make_unique<FloorPeer>(); }

}  // namespace tutti::bench
