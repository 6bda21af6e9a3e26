// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/event_file.h"

#include <unistd.h>

#include <array>

#include "tessera/base/error.h"
#include "tessera/formats/event.pb.h"
#include "tessera/formats/tfrecord.h"

namespace tessera::formats {
namespace {

wire::Event make_event(double wall_time, int64_t step) {
  wire::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  return event;
}

}  // namespace

std::string event_file_header(double wall_time) {
  wire::Event event = make_event(wall_time, 0);
  event.set_file_version("brain.Event:2");
  return tfrecord(event.SerializeAsString());
}

std::string event_session_start(double wall_time, int64_t step) {
  wire::Event event = make_event(wall_time, step);
  event.mutable_session_log()->set_status(wire::SessionLog::START);
  return tfrecord(event.SerializeAsString());
}

std::string event_scalars(double wall_time, int64_t step, const EventScalars& scalars) {
  wire::Event event = make_event(wall_time, step);
  for (const auto& [tag, value] : scalars) {
    auto* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(tag);
    scalar->set_simple_value(static_cast<float>(value));
  }
  return tfrecord(event.SerializeAsString());
}

std::filesystem::path new_event_file_path(const std::filesystem::path& folder, double wall_time) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {'h', 'o', 's', 't'};
  const std::string start =
      concat("events.out.tfevents.", static_cast<int64_t>(wall_time), ".", host.data(), ".", ::getpid(), ".");
  for (int number = 0;; ++number) {
    auto path = folder / (start + std::to_string(number));
    if (std::error_code ignored; !std::filesystem::exists(path, ignored)) return path;
  }
}

std::vector<EventRecord> read_event_file(const std::filesystem::path& path) {
  std::vector<EventRecord> records;
  TfRecordReader reader(path);
  while (const auto payload = reader.next()) {
    wire::Event event;
    if (!event.ParseFromString(*payload)) {
      user_error({.where = "formats.event_file",
                  .problem = concat(path.string(), " is not a TensorBoard event file: record ",
                                    records.size(), " is not a protobuf event")});
    }
    EventRecord record{event.wall_time(), event.step(), event.file_version(), false, {}};
    record.session_start = event.session_log().status() == wire::SessionLog::START;
    for (const auto& scalar : event.summary().value()) {
      record.scalars.emplace_back(scalar.tag(), double{scalar.simple_value()});
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace tessera::formats
