// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/bar.h"
#include "tessera/monitor/number.h"

namespace tessera::monitor {
namespace {

constexpr int kLeastBar = 8, kMostBar = 30;

// "1:02:03" or "4:05".
std::string clock(double seconds) {
  const auto total = static_cast<long>(std::min(seconds, 3.6e9) + 0.5);
  if (total >= 3600) return print("%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
  return print("%ld:%02ld", total / 60, total % 60);
}

struct Field {
  std::string text;
  int rank;  // the highest are left out first
};

void add(std::vector<Field>& fields, int rank, double value, const std::string& text) {
  if (std::isfinite(value)) fields.push_back({text, rank});
}

// "1.9", "0.00012", "1,234": three digits, and no exponent where one can do without.
std::string rate(double value) {
  return value >= 999.5 ? human_count(std::llround(std::min(value, 1e15))) : print("%.3g", value);
}

std::vector<Field> fields_of(const Progress& p) {
  std::vector<Field> fields;
  if (p.step > 0) fields.push_back({print("loss %.4f", p.loss), 1});
  add(fields, 2, p.top1, print("top-1 %.2f %%", p.top1));
  add(fields, 4, p.images_per_second, rate(p.images_per_second) + " img/s");
  add(fields, 9, p.tflops, rate(p.tflops) + " TFLOP/s");
  add(fields, 5, p.peak_share, print("%.0f %% of peak", 100 * p.peak_share));
  add(fields, 6, p.data_wait, print("data %.0f %%", 100 * p.data_wait));
  add(fields, 7, p.comm_wait, print("comm %.0f %%", 100 * p.comm_wait));
  add(fields, 7, p.bubble, print("bubble %.0f %%", 100 * p.bubble));
  add(fields, 8, p.memory_bytes, human_bytes(p.memory_bytes));
  add(fields, 8, p.device_bytes, device_memory_text(p.device_bytes, p.device_peak_bytes));
  add(fields, 3, p.seconds_left, clock(std::isfinite(p.seconds_left) ? p.seconds_left : 0) + " left");
  return fields;
}

std::string label_of(const Progress& p) {
  if (!p.status.empty()) return p.status;
  return std::isfinite(p.epoch) ? print("epoch %.2f", p.epoch) : "starting";
}

// A UTF-8 text's first `width` characters; control characters, which would break the line, become spaces.
std::string cut(const std::string& text, int width) {
  std::string out;
  int columns = 0;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
    if (!continues && ++columns > width) break;
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
  }
  return out;
}

int columns_of(const std::string& text) {
  return static_cast<int>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string draw_bar(double share, int width, bool unicode) {
  // Block characters fill in eighths of a column.
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = std::clamp(share, 0.0, 1.0) * width;
  const int whole = static_cast<int>(filled);
  std::string out;
  for (int i = 0; i < whole; ++i) out += unicode ? "█" : "#";
  int used = whole;
  if (unicode && whole < width) {
    const int eighths = static_cast<int>((filled - whole) * 8);
    out += kEighths[eighths];
    used += eighths > 0 ? 1 : 0;
  }
  for (int i = used; i < width; ++i) out += unicode ? "░" : "-";
  return out;
}

}  // namespace

std::string bar_line(const Progress& p, int width, bool unicode) {
  const std::string label = label_of(p);
  const std::string count = human_count(p.step) + "/" + human_count(p.total_steps);
  auto fields = fields_of(p);
  const int fixed = columns_of(label) + 2 + 2 + columns_of(count);
  const auto used = [&] {
    int sum = fixed;
    for (const auto& field : fields) sum += 2 + columns_of(field.text);
    return sum;
  };
  while (!fields.empty() && used() + kLeastBar > width) {
    fields.erase(std::max_element(fields.begin(), fields.end(),
                                  [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
  const int room = width - used();
  const double share =
      p.total_steps > 0 ? static_cast<double>(p.step) / static_cast<double>(p.total_steps) : 0;
  std::string line = label + "  ";
  if (room >= kLeastBar) line += draw_bar(share, std::min(room, kMostBar), unicode) + "  ";
  line += count;
  for (const auto& field : fields) line += "  " + field.text;
  return cut(line, width);
}

std::string plain_line(const Progress& p) {
  std::string line = "step " + human_count(p.step) + "/" + human_count(p.total_steps);
  if (std::isfinite(p.epoch)) line += print("  epoch %.2f", p.epoch);
  bool first = true;
  for (const auto& field : fields_of(p)) {
    line += "  " + field.text;
    if (first && std::isfinite(p.learning_rate)) line += print("  lr %.2e", p.learning_rate);
    first = false;
  }
  return line;
}

std::string device_memory_text(double bytes, double peak_bytes) {
  if (!std::isfinite(bytes)) return "";
  return concat("GPU ", human_bytes(bytes), " (peak ", human_bytes(peak_bytes), ")");
}

std::string evaluation_line(const EvalMetrics& m) {
  const std::string average =
      m.top1_ema ? print("; ema top-1 %.2f %%, loss %.4f", *m.top1_ema, m.loss_ema.value_or(0)) : "";
  return print(
      "evaluation at step %s (epoch %.2f): top-1 %.2f %%, top-5 %.2f %%, loss %.4f%s; %s images in %s",
      human_count(m.step).c_str(), m.epoch, m.top1, m.top5, m.loss, average.c_str(),
      human_count(m.samples).c_str(), human_seconds(m.seconds).c_str());
}

void Pace::add(int64_t step, double seconds) {
  constexpr double kWindow = 120;
  if (!std::isfinite(seconds)) return;
  last_ = {step, seconds};
  // Going back in time means another run's clock: start over.
  if (!marks_.empty() && (seconds < marks_.back().second || step < marks_.back().first)) marks_.clear();
  if (marks_.empty() || seconds - marks_.back().second >= 1) marks_.push_back(last_);
  while (marks_.size() > 2 && seconds - marks_[1].second >= kWindow) marks_.pop_front();
}

double Pace::seconds_per_step() const {
  if (marks_.empty() || last_.first <= marks_.front().first) return Progress::kUnknown;
  return (last_.second - marks_.front().second) / static_cast<double>(last_.first - marks_.front().first);
}

}  // namespace tessera::monitor
