// Timelines as users make them.
#include "tutti/timeline.hpp"

#include "comm/communicator/communicator_impl.hpp"
#include "comm/record/timeline_file.hpp"

namespace tutti {

record::Trace* record::trace_of(const Communicator& communicator) {
  return communicator.impl()->trace();
}

class Timeline::Impl {
 public:
  Impl(const std::filesystem::path& path, bool of_process)
      : file_(std::make_shared<record::TimelineFile>(path, "path")), of_process_(of_process) {
    if (of_process_) record::set_current_timeline(file_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (of_process_) record::end_current_timeline();
    file_->close();
  }

  void join(Communicator& communicator) {
    communicator.impl()->add_trace(file_->join(communicator));
  }

 private:
  std::shared_ptr<record::TimelineFile> file_;
  const bool of_process_;
};

Timeline::Timeline(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path, true)) {}

Timeline::Timeline(const std::filesystem::path& path, Communicator& communicator)
    : impl_(std::make_unique<Impl>(path, false)) {
  impl_->join(communicator);
}

Timeline::Timeline(Timeline&&) noexcept = default;
Timeline::~Timeline() { close(); }
void Timeline::close() noexcept { impl_.reset(); }

}  // namespace tutti
