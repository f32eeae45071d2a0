// ps-lite: a scheduler, a server that adds what is pushed, and a worker, over ZeroMQ.
#include <ps/ps.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <unordered_map>

#include "ps/side.hpp"
#include "tutti/error.hpp"

namespace tutti::bench {
namespace {

/** ps-lite's KVServerDefaultHandle, for values of any length. */
struct AddingHandle {
  std::unordered_map<::ps::Key, std::vector<float>> store;

  void operator()(const ::ps::KVMeta& meta, const ::ps::KVPairs<float>& request,
                  ::ps::KVServer<float>* server) {
    ::ps::KVPairs<float> reply;
    const std::size_t count = request.keys.size();
    if (meta.push) {
      const std::size_t length = request.vals.size() / count;
      const float* more = request.vals.data();
      for (const ::ps::Key key : request.keys) {
        std::vector<float>& value = store[key];
        value.resize(length);
        for (float& element : value) element += *more++;
      }
    } else {
      reply.keys = request.keys;
      std::size_t length = 0;
      for (const ::ps::Key key : request.keys) length += store[key].size();
      reply.vals.resize(length);
      float* place = reply.vals.data();
      for (const ::ps::Key key : request.keys) {
        const std::vector<float>& value = store[key];
        place = std::copy(value.begin(), value.end(), place);
      }
    }
    server->Response(meta, reply);
  }
};

/** A process of ps-lite's with that role. */
pid_t start(const char* role) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setenv("DMLC_ROLE", role, 1);
  ::ps::Start(0);
  std::unique_ptr<::ps::KVServer<float>> server;
  if (::ps::IsServer()) {
    server = std::make_unique<::ps::KVServer<float>>(0);
    server->set_request_handle(AddingHandle());
  }
  ::ps::Finalize(0, true);
  server.reset();
  ::_exit(0);
}

class PsLiteSide final : public PsSide {
 public:
  explicit PsLiteSide(const PsLoad& load) : load_(load), batches_(load, true) {
    const std::string port = std::to_string(20000 + ::getpid() % 20000);
    for (const auto& [name, value] : {std::pair<const char*, const char*>{"DMLC_NUM_SERVER", "1"},
                                      {"DMLC_NUM_WORKER", "1"},
                                      {"DMLC_PS_ROOT_URI", "127.0.0.1"},
                                      {"DMLC_PS_ROOT_PORT", port.c_str()},
                                      {"DMLC_NODE_HOST", "127.0.0.1"}}) {
      ::setenv(name, value, 1);
    }
    for (const char* role : {"scheduler", "server"}) others_.push_back(start(role));
    ::setenv("DMLC_ROLE", "worker", 1);
    ::ps::Start(0);
    worker_ = std::make_unique<::ps::KVWorker<float>>(0, 0);
    fill();
  }
  PsLiteSide(const PsLiteSide&) = delete;
  PsLiteSide& operator=(const PsLiteSide&) = delete;
  ~PsLiteSide() override {
    worker_.reset();
    ::ps::Finalize(0, true);
    for (const pid_t pid : others_) ::waitpid(pid, nullptr, 0);
  }

  std::optional<PsTurn> measure(std::string_view task) override {
    if (task == "lookup") return lookup();
    if (task == "push_sgd") return push();
    if (task.starts_with("dense")) return dense(task);
    return task == "push_ack" ? std::optional(ack()) : std::nullopt;
  }

 private:
  using Keys = ::ps::SArray<::ps::Key>;
  using Values = ::ps::SArray<float>;

  /** Every row, for the map to have its size, though only batches are asked for. */
  void fill() {
    std::vector<std::int64_t> order(static_cast<std::size_t>(load_.rows));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    std::sort(order.begin(), order.end(), [](std::int64_t a, std::int64_t b) {
      return PsBatches::id_of(a) < PsBatches::id_of(b);
    });
    constexpr std::size_t kChunk = 65536;
    for (std::size_t first = 0; first < order.size(); first += kChunk) {
      const std::size_t count = std::min(kChunk, order.size() - first);
      Keys keys(count);
      Values values(count * static_cast<std::size_t>(load_.dim));
      float* place = values.data();
      ::ps::Key* key = keys.data();
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t row = order[first + i];
        *key++ = static_cast<::ps::Key>(PsBatches::id_of(row));
        for (std::int64_t j = 0; j < load_.dim; ++j) *place++ = PsBatches::first_value(row, j);
      }
      worker_->Wait(worker_->ZPush(keys, values));
    }
  }

  Keys keys_of(std::int64_t number) const {
    const std::span<const std::int64_t> ids = batches_.ids(number);
    Keys keys(ids.size());
    std::transform(ids.begin(), ids.end(), keys.data(),
                   [](std::int64_t id) { return static_cast<::ps::Key>(id); });
    return keys;
  }

  bool holds(std::int64_t number) const {
    Values out(static_cast<std::size_t>(load_.batch * load_.dim));
    worker_->Wait(worker_->ZPull(keys_of(number), &out));
    return batches_.holds(number, {out.data(), out.size()});
  }

  PsTurn lookup() {
    Values out(static_cast<std::size_t>(load_.batch * load_.dim));
    PsTurn turn;
    turn.us = time_calls(load_.seconds,
                         [&] { worker_->Wait(worker_->ZPull(keys_of(batches_.next()), &out)); });
    turn.checked = holds(batches_.next());
    return turn;
  }

  PsTurn push() {
    constexpr std::size_t kUnderWay = 4;
    Values ones(static_cast<std::size_t>(load_.batch * load_.dim), 1.0F);
    std::vector<int> stamps;
    std::int64_t last = 0;
    PsTurn turn;
    const auto wait_for = [&](std::size_t left) {
      while (stamps.size() > left) {
        worker_->Wait(stamps.front());
        stamps.erase(stamps.begin());
      }
    };
    turn.us = time_calls(
        load_.seconds,
        [&] {
          last = batches_.next();
          stamps.push_back(worker_->ZPush(keys_of(last), ones));
          batches_.pushed(last);
          wait_for(kUnderWay);
        },
        [&] { wait_for(0); });
    turn.checked = holds(last);
    return turn;
  }

  PsTurn dense(std::string_view task) {
    const bool large = task.ends_with("64M");
    const auto elements = static_cast<std::size_t>(kDenseElements[large ? 1 : 0]);
    Keys key(1, static_cast<::ps::Key>(large ? 2 : 1));
    Values ones(elements, 1.0F);
    Values values(elements);
    int& calls = dense_calls_[large ? 1 : 0];
    if (calls == 0) {
      worker_->Wait(worker_->ZPush(key, ones));
      calls = 1;
    }
    PsTurn turn;
    turn.us = time_calls(load_.seconds, [&] {
      if (task.starts_with("dense_pull")) {
        worker_->Wait(worker_->ZPull(key, &values));
      } else {
        worker_->Wait(worker_->ZPush(key, ones));
        ++calls;
      }
    });
    worker_->Wait(worker_->ZPull(key, &values));
    const std::span<const float> got(values.data(), elements);
    const auto expected = static_cast<float>(calls);
    turn.checked = got.front() == expected && got.back() == expected;
    return turn;
  }

  PsTurn ack() {
    const Keys key(1, static_cast<::ps::Key>(3));
    const Values nothing(static_cast<std::size_t>(load_.dim), 0.0F);
    return {time_each(2000, 0, [&] { worker_->Wait(worker_->ZPush(key, nothing)); }), true};
  }

  PsLoad load_;
  PsBatches batches_;
  std::vector<pid_t> others_;
  std::unique_ptr<::ps::KVWorker<float>> worker_;
  int dense_calls_[2] = {0, 0};
};

}  // namespace

std::unique_ptr<PsSide> make_pslite_side(const PsLoad& load) {
  return std::make_unique<PsLiteSide>(load);
}

}  // namespace tutti::bench
