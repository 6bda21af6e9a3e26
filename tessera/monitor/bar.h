// SPDX-License-Identifier: Apache-2.0
// One line of progress: as words, and as a bar on a terminal. No LibTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/monitor/report.h"

namespace tessera::monitor {

/// What a line of progress shows. Numbers that are not finite are left out, but for the loss.
struct Progress {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  std::string status;  // replaces "epoch 3.4" where not empty
  int64_t step = 0, total_steps = 0;
  double epoch = kUnknown, loss = kUnknown, learning_rate = kUnknown;
  double top1 = kUnknown;  // of the last evaluation, percent
  double images_per_second = kUnknown, tflops = kUnknown;
  double peak_share = kUnknown, data_wait = kUnknown, comm_wait = kUnknown;  // 0..1
  double memory_bytes = kUnknown, seconds_left = kUnknown;
  double device_bytes = kUnknown, device_peak_bytes = kUnknown;
  double bubble = kUnknown;  // 0..1
};

/// At most `width` columns: fields that do not fit are left out, the least important first. `unicode`: draw
/// the bar from block characters, else from # and -.
std::string bar_line(const Progress& progress, int width, bool unicode);
/// All fields, for files and pipes.
std::string plain_line(const Progress& progress);
/// "GPU 12.30 GiB (peak 14.10 GiB)"; empty where `bytes` is not finite.
std::string device_memory_text(double bytes, double peak_bytes);
std::string evaluation_line(const EvalMetrics& metrics);

/// Steps per second over the last two minutes or so. Pure.
class Pace {
 public:
  void add(int64_t step, double seconds);
  /// NaN until two steps are known.
  double seconds_per_step() const;

 private:
  std::deque<std::pair<int64_t, double>> marks_;  // a second or more apart
  std::pair<int64_t, double> last_{0, 0};
};

/// The line at the bottom of a terminal, redrawn in place at most 10 times a second. Safe from any thread. A
/// terminal that is slow or stopped is skipped; one that went away is left alone.
class Bar {
 public:
  explicit Bar(int fd);
  /// `at_once`: whatever the time since the last drawing.
  void draw(const Progress& progress, bool at_once);
  void clear();

 private:
  void put(const std::string& bytes);

  std::mutex mutex_;
  int fd_;
  bool unicode_;
  bool shown_ = false, gone_ = false;
  std::chrono::steady_clock::time_point last_{};
};

/// True where `fd` is a terminal that can redraw a line.
bool can_draw(int fd);

}  // namespace tessera::monitor
