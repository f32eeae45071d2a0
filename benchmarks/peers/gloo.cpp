// Gloo, as PyTorch uses it.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <mpi.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "peers/peer.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {
namespace {

/** A directory that all ranks of this host know, gone with the object on rank 0. */
class MeetingPlace {
 public:
  explicit MeetingPlace(int rank) : rank_(rank) {
    const std::string pattern = std::filesystem::temp_directory_path() / "tutti-gloo-XXXXXX";
    pattern.copy(path_.data(), path_.size() - 1);
    if (rank == 0 && ::mkdtemp(path_.data()) == nullptr) {
      throw SystemError("cannot make a directory", errno);
    }
    MPI_Bcast(path_.data(), static_cast<int>(path_.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  ~MeetingPlace() {
    std::error_code ignored;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 0) std::filesystem::remove_all(path_.data(), ignored);
  }
  std::string path() const { return path_.data(); }

 private:
  int rank_;
  std::array<char, 256> path_{};
};

class GlooPeer final : public Peer {
 public:
  GlooPeer() {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const MeetingPlace place(rank);
    gloo::rendezvous::FileStore store(place.path());
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    const gloo::transport::tcp::attr address("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(address);
    context->connectFullMesh(store, device);
    context_ = std::move(context);
  }

  std::vector<std::function<void()>> ways(const Call& call) override {
    if (call.op != Op::all_reduce) return {};
    const View data = call.out;
    switch (data.dtype) {
      case DType::f32:
        return all_reduce<float>(data);
      case DType::f64:
        return all_reduce<double>(data);
      case DType::i32:
        return all_reduce<std::int32_t>(data);
      case DType::i64:
        return all_reduce<std::int64_t>(data);
      case DType::u8:
        return all_reduce<std::uint8_t>(data);
      default:
        return {};
    }
  }

 private:
  template <class T>
  std::vector<std::function<void()>> all_reduce(View data) {
    auto* elements = static_cast<T*>(data.data);
    const auto ring = [this, elements, count = static_cast<std::size_t>(data.count)] {
      gloo::AllreduceOptions options(context_);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(elements, count);
      options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
        gloo::sum<T>(static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b), n);
      });
      gloo::allreduce(options);
    };
    const auto halving = std::make_shared<gloo::AllreduceHalvingDoubling<T>>(
        context_, std::vector<T*>{elements}, static_cast<int>(data.count));
    return {ring, [halving] { halving->run(); }};
  }

  std::shared_ptr<gloo::Context> context_;
};

}  // namespace

std::unique_ptr<Peer> make_gloo_peer() { return std::make_unique<GlooPeer>(); }

}  // namespace tutti::bench
