// Gloo, as PyTorch uses it.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <mpi.h>

#include <map>
#include <string>
#include <vector>

#include "peers/peer.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {
namespace {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int size_of_group(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

bool on_one_host() {
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  const int size = size_of_group(host);
  MPI_Comm_free(&host);
  return size == size_of_group(MPI_COMM_WORLD);
}

/** Where the ranks put what the others need. All ranks set a key, each its own, before any of them
 * asks for the others' keys of this round; so it goes round when they set. */
class StoreOverMpi final : public gloo::rendezvous::Store {
 public:
  void set(const std::string& key, const std::vector<char>& data) override {
    std::vector<std::string> keys = all_of({key.begin(), key.end()});
    std::vector<std::string> values = all_of(data);
    for (std::size_t i = 0; i < keys.size(); ++i) known_[keys[i]] = values[i];
  }
  std::vector<char> get(const std::string& key) override {
    const std::string& value = known_.at(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& /*keys*/) override {}

 private:
  static std::vector<std::string> all_of(const std::vector<char>& own) {
    std::vector<std::string> all;
    for (int rank = 0; rank < size_of_group(MPI_COMM_WORLD); ++rank) {
      auto length = static_cast<int>(own.size());
      MPI_Bcast(&length, 1, MPI_INT, rank, MPI_COMM_WORLD);
      std::string text(own.begin(), own.end());
      text.resize(static_cast<std::size_t>(length));
      MPI_Bcast(text.data(), length, MPI_CHAR, rank, MPI_COMM_WORLD);
      all.push_back(text);
    }
    return all;
  }

  std::map<std::string, std::string> known_;
};

template <class T>
void add(void* out, const void* a, const void* b, std::size_t n) {
  gloo::sum<T>(static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b), n);
}

class GlooPeer final : public Peer {
 public:
  GlooPeer() {
    StoreOverMpi store;
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_in(MPI_COMM_WORLD),
                                                               size_of_group(MPI_COMM_WORLD));
    gloo::transport::tcp::attr address;  // by default that of the host's name
    if (on_one_host()) address.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(address);
    context->connectFullMesh(store, device);
    context_ = std::move(context);
  }

  std::vector<Way> ways(const Call& call) override {
    switch (call.out.dtype) {
      case DType::f32:
        return typed_ways<float>(call);
      case DType::f64:
        return typed_ways<double>(call);
      case DType::i32:
        return typed_ways<std::int32_t>(call);
      case DType::i64:
        return typed_ways<std::int64_t>(call);
      case DType::u8:
        return typed_ways<std::uint8_t>(call);
      default:
        return {};
    }
  }

 private:
  template <class T>
  std::vector<Way> typed_ways(const Call& call) {
    auto* in = static_cast<T*>(call.in.data);
    auto* out = static_cast<T*>(call.out.data);
    const auto ins = static_cast<std::size_t>(call.in.count);
    const auto outs = static_cast<std::size_t>(call.out.count);
    switch (call.op) {
      case Op::all_reduce:
        return all_reduce(out, outs);
      case Op::broadcast:
        return {{"default", [this, out, outs] {
                   gloo::BroadcastOptions options(context_);
                   options.setOutput(out, outs);
                   options.setRoot(0);
                   gloo::broadcast(options);
                 }}};
      case Op::all_gather:
        return {{"default", [this, in, ins, out, outs] {
                   gloo::AllgatherOptions options(context_);
                   options.setInput(in, ins);
                   options.setOutput(out, outs);
                   gloo::allgather(options);
                 }}};
      case Op::reduce:
        return {{"default", [this, in, ins, out, outs] {
                   gloo::ReduceOptions options(context_);
                   options.setInput(in, ins);
                   options.setOutput(out, outs);
                   options.setRoot(0);
                   options.setReduceFunction(add<T>);
                   gloo::reduce(options);
                 }}};
      case Op::barrier:
        return {{"default", [this] {
                   gloo::BarrierOptions options(context_);
                   gloo::barrier(options);
                 }}};
      default:
        return {};
    }
  }

  template <class T>
  std::vector<Way> all_reduce(T* elements, std::size_t count) {
    const auto ring = [this, elements, count] {
      gloo::AllreduceOptions options(context_);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(elements, count);
      options.setReduceFunction(add<T>);
      gloo::allreduce(options);
    };
    const auto halving = std::make_shared<gloo::AllreduceHalvingDoubling<T>>(
        context_, std::vector<T*>{elements}, static_cast<int>(count));
    return {{"ring", ring}, {"halving_doubling", [halving] { halving->run(); }}};
  }

  std::shared_ptr<gloo::Context> context_;
};

}  // namespace

std::unique_ptr<Peer> make_gloo_peer() { return std::make_unique<GlooPeer>(); }

}  // namespace tutti::bench
