// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/png.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"

namespace tessera::monitor {
namespace {

constexpr int64_t kMostSide = 112;              // pixels; larger images are scaled down
constexpr size_t kMostBytes = size_t{1} << 20;  // of all images together, as text in the page

// The mean of each target pixel's area; width and height keep their ratio.
PredictionSample shrink(const PredictionSample& image) {
  const int64_t side = std::max(image.width, image.height);
  if (side <= kMostSide) return image;
  PredictionSample out = image;
  out.width = std::max<int64_t>(1, image.width * kMostSide / side);
  out.height = std::max<int64_t>(1, image.height * kMostSide / side);
  out.pixels.assign(static_cast<size_t>(out.width * out.height * image.channels), 0);
  for (int64_t y = 0; y < out.height; ++y) {
    const int64_t top = y * image.height / out.height, bottom = (y + 1) * image.height / out.height;
    for (int64_t x = 0; x < out.width; ++x) {
      const int64_t left = x * image.width / out.width, right = (x + 1) * image.width / out.width;
      for (int64_t c = 0; c < image.channels; ++c) {
        int64_t sum = 0;
        for (int64_t v = top; v < bottom; ++v) {
          for (int64_t u = left; u < right; ++u) {
            sum += image.pixels[static_cast<size_t>((v * image.width + u) * image.channels + c)];
          }
        }
        const int64_t area = (bottom - top) * (right - left);
        out.pixels[static_cast<size_t>((y * out.width + x) * image.channels + c)] =
            static_cast<uint8_t>((sum + area / 2) / area);
      }
    }
  }
  return out;
}

std::string picture(const PredictionSample& sample) {
  if (sample.width <= 0 || sample.height <= 0) return "";
  TESSERA_CHECK_EQ(static_cast<int64_t>(sample.pixels.size()),
                   sample.width * sample.height * sample.channels);
  const PredictionSample small = shrink(sample);
  return base64(formats::encode_png(small.pixels.data(), small.width, small.height, small.channels));
}

std::string tile(const PredictionSample& sample, const std::string& png) {
  const bool right = sample.truth == sample.prediction;
  const std::string truth = escape_html(sample.truth), prediction = escape_html(sample.prediction);
  const double percent =
      std::isfinite(sample.confidence) ? std::clamp(100 * sample.confidence, 0.0, 100.0) : 0;
  const std::string image = png.empty()
                                ? "<div class=\"blank\"></div>"
                                : concat("<img alt=\"", truth, "\" src=\"data:image/png;base64,", png, "\">");
  return concat("<figure class=\"tile ", right ? "right" : "wrong", "\">", image, "<figcaption><b title=\"",
                prediction, "\"><span class=\"mark\">", right ? "✓" : "✗", "</span> ", prediction,
                "</b><span class=\"truth\" title=\"", truth, "\">", right ? "correct" : "is " + truth,
                "</span><span class=\"sure\"><i style=\"width:", print("%.0f", percent),
                "%\"></i></span><span class=\"percent\">", print("%.0f", percent),
                " %</span></figcaption></figure>\n");
}

}  // namespace

Tiles tiles(const std::vector<PredictionSample>& samples) {
  Tiles result;
  size_t bytes = 0;
  for (const auto& sample : samples) {
    const std::string png = picture(sample);
    bytes += png.size();
    if (bytes > kMostBytes) break;
    result.html += tile(sample, png);
    ++result.shown;
    result.right += sample.truth == sample.prediction ? 1 : 0;
  }
  return result;
}

namespace {

/// ", drawn evenly from all 10,000 (41.0 % right)": what the images stand for.
std::string drawn_from(const ReportInput& input) {
  if (input.evals.empty() || input.evals.back().samples == 0) return "";
  const EvalMetrics& all = input.evals.back();
  return concat(", drawn evenly from all ", human_count(all.samples), " (", print("%.1f", all.top1),
                " % right)");
}

}  // namespace

std::string predictions_part(const ReportInput& input) {
  if (input.samples.empty()) return "";
  const Tiles images = tiles(input.samples);
  return section(
      "predictions", "Predictions",
      concat(images.right, " of these ", images.shown, " test images are right", drawn_from(input)),
      "<div class=\"tiles\">\n" + images.html + "</div>\n");
}

}  // namespace tessera::monitor
