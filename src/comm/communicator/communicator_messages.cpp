// Checks the arguments of messages between two ranks.
#include <string>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "comm/arguments.hpp"
#include "comm/communicator/communicator_impl.hpp"

namespace tutti {
namespace {

/** `where` comes before the names of arguments: "", or "messages[2].". */
void check_message(const std::string& where, const Message& message, int ranks) {
  const bool receives = message.receives;
  const bool on_gpu = message.view().device.kind != DeviceKind::cpu;
  const bool from_any = receives && message.peer == kAnySource;
  if (from_any && on_gpu) {
    refuse(where,
           "source is kAnySource, but between GPUs a recv names its source: NCCL asks for it");
  }
  if (on_gpu && message.tag != 0) {
    refuse(where, "tag is ", message.tag,
           ", but must be 0 between GPUs: NCCL matches the messages of two ranks in their order");
  }
  check_view(where + (receives ? "out" : "in"), message.view());
  if (!from_any) check_rank(where + (receives ? "source" : "destination"), message.peer, ranks);
  if (message.tag < 0 && !(receives && message.tag == kAnyTag)) {
    refuse(where, "tag is ", message.tag, ", but must not be negative");
  }
}

}  // namespace

Event Communicator::send(ConstView in, int destination, std::int32_t tag, const Stream& stream) {
  check_message("", Message::send(in, destination, tag), world_size());
  return impl()->run(Call::send(in, destination, tag), stream);
}

Event Communicator::recv(View out, int source, std::int32_t tag, const Stream& stream,
                         Received* received) {
  check_message("", Message::recv(out, source, tag), world_size());
  return impl()->run(Call::recv(out, source, tag, received), stream);
}

Event Communicator::exchange(std::span<const Message> messages, const Stream& stream) {
  const auto name = [](std::size_t i) { return "messages[" + std::to_string(i) + "]"; };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    check_message(name(i) + ".", message, world_size());
    const Device device = message.view().device;
    if (device != messages.front().view().device) {
      refuse(name(i), " is in memory of ", device_text(device), ", but messages[0] in that of ",
             device_text(messages.front().view().device));
    }
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!messages[i].receives && !messages[j].receives) continue;  // both are only read
      if (are_apart(messages[j].view(), messages[i].view())) continue;
      check_apart(name(j), messages[j].view(), name(i), messages[i].view());
    }
  }
  return impl()->run(Call::exchange(messages), stream);
}

}  // namespace tutti
