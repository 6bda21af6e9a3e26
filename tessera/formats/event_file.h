// SPDX-License-Identifier: Apache-2.0
// TensorBoard event files: TFRecords that hold protobuf events. Records are made here as bytes; whoever owns
// the file appends them. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tessera::formats {

/// A point of several curves: tag ("train/loss") and value.
using EventScalars = std::vector<std::pair<std::string, double>>;

/// The record every event file starts with.
std::string event_file_header(double wall_time);
/// Tells TensorBoard to forget what earlier files of this folder say about `step` and beyond.
std::string event_session_start(double wall_time, int64_t step);
std::string event_scalars(double wall_time, int64_t step, const EventScalars& scalars);

/// A name TensorBoard finds, that sorts after older ones and does not exist in `folder` yet.
std::filesystem::path new_event_file_path(const std::filesystem::path& folder, double wall_time);

/// One event as read back; what was not set is empty.
struct EventRecord {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  bool session_start = false;
  EventScalars scalars;
};

/// All events of a file. Errors: UserError that names the file, the offset and what is wrong.
std::vector<EventRecord> read_event_file(const std::filesystem::path& path);

}  // namespace tessera::formats
