// A worker's end of the link to a server of another host.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "base/file_descriptor.hpp"
#include "ps/link/frame.hpp"
#include "ps/link/link_end.hpp"

namespace tutti::ps {

/** Requests and answers are frames over a connection of data. A thread codes and moves them while
 * the worker computes. */
class RemoteLink final : public LinkEnd {
 public:
  RemoteLink(mpi::Socket control, mpi::Socket data, Name server, RowFormat format,
             std::chrono::milliseconds timeout);
  RemoteLink(const RemoteLink&) = delete;
  RemoteLink& operator=(const RemoteLink&) = delete;
  ~RemoteLink() override;

  Draft draft(std::int64_t bytes) override;
  void discard(const Draft& draft) override;
  std::uint64_t send(const RequestHeader& header, const Draft& draft) override;
  bool on_this_host() const override { return false; }
  std::int64_t bytes_sent() const override { return bytes_sent_; }
  std::int64_t bytes_received() const override { return bytes_received_; }

 private:
  struct Queued {
    RequestHeader header;
    PayloadMemory payload;
  };

  /** done() is asked with the lock; false at the deadline. Throws PeerLost. */
  template <class Done>
  bool wait_until(const Done& done);
  /** No data come any more: waits a moment for the other connection, whose last byte says why and
   * may be on its way yet. Throws PeerLost. */
  void hear_end();
  bool wait_for_answer(std::uint64_t number) override;
  void advance() override;

  // The thread's.
  void run();
  /** Both go on as far as is possible now; an errno, or 0, when the connection is over. */
  std::optional<int> send_queued();
  std::optional<int> receive_answers();
  /** Starts to send the next request; false if there is none. */
  bool start_next();
  void end_with(const std::string& reason);

  mpi::Socket data_;
  RowFormat format_;
  FileDescriptor wake_;  // can be read when something is queued, or the thread is to end
  std::atomic<bool> ends_ = false;
  std::atomic<std::int64_t> bytes_sent_ = 0;
  std::atomic<std::int64_t> bytes_received_ = 0;
  std::condition_variable news_;

  // Locked.
  std::int64_t last_draft_ = 0;
  std::map<std::int64_t, PayloadMemory> drafts_;
  std::deque<Queued> queued_;
  std::int64_t queued_bytes_ = 0;
  std::deque<RequestHeader> unanswered_;  // those sent, and those queued
  std::deque<Reply> came_;                // not put into replies_
  std::uint64_t came_count_ = 0;          // all that have ever come
  std::optional<std::string> ended_;      // what the thread has ended with

  // The thread's.
  FrameReader<ReplyFrame> reader_;
  std::optional<OutgoingFrame<RequestFrame>> outgoing_;

  std::thread thread_;
};

}  // namespace tutti::ps
