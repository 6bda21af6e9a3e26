// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/inspect.h"

#include <algorithm>
#include <span>

#include "tessera/base/error.h"
#include "tessera/base/words.h"
#include "tessera/formats/image.h"
#include "tessera/prepare/image_kind.h"
#include "tessera/prepare/in_order.h"

namespace tessera::prepare {
namespace {

constexpr int64_t kTinySide = 32, kHugePixels = 20'000'000, kLongRatio = 4;

/// What one sample turned out to be.
struct Look {
  Seen seen;
  std::string format, reason;
  std::vector<std::string> odd;
};

bool has(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

void find_odd(const ImageKind& kind, const std::string& name, std::vector<std::string>& odd) {
  if (has(kind.name, "gray")) odd.emplace_back("gray");
  if (has(kind.name, "CMYK") || has(kind.name, "YCCK")) odd.emplace_back("CMYK");
  if (has(kind.name, "alpha") || has(kind.name, "RGBA")) odd.emplace_back("with alpha");
  if (has(kind.name, "16 bit")) odd.emplace_back("16 bit");
  if (has(kind.name, "arithmetic")) odd.emplace_back("arithmetic coding");
  if (kind.orientation != 1) odd.emplace_back("turned by EXIF");
  const std::string ending = lower(name.substr(std::min(name.rfind('.'), name.size())));
  if (kind.name.starts_with("PNG") && (ending == ".jpg" || ending == ".jpeg"))
    odd.emplace_back("PNG named as JPEG");
  if (kind.name.starts_with("JPEG") && ending == ".png") odd.emplace_back("JPEG named as PNG");
}

void find_odd_size(const Seen& seen, std::vector<std::string>& odd) {
  const int64_t small = std::min(seen.width, seen.height), large = std::max(seen.width, seen.height);
  if (small < kTinySide) odd.emplace_back("smaller than 32 pixels");
  if (seen.width * seen.height > kHugePixels) odd.emplace_back("above 20 million pixels");
  if (large > kLongRatio * small) odd.emplace_back("longer than 4 : 1");
}

void look_at(const data::Source& source, int64_t index, Look& look) {
  const data::Stored stored = source.load(index);
  const std::string name = source.sample_name(index);
  if (source.label(index) < 0) {
    user_error({.where = "prepare.inspect", .problem = escape(name) + " has no label"});
  }
  if (stored.file.empty() && !stored.pixels.pixels.empty()) {
    look.seen.width = stored.pixels.width;
    look.seen.height = stored.pixels.height;
    look.seen.bytes = stored.pixels.pixels.size();
    look.format = stored.pixels.channels == 1 ? "plain pixels, gray" : "plain pixels, RGB";
    return;
  }
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(stored.file.data()),
                                       stored.file.size());
  const ImageKind kind = image_kind(bytes);
  const formats::Image image = formats::decode_image(bytes, name);
  look.seen.width = image.width;
  look.seen.height = image.height;
  look.seen.bytes = stored.file.size();
  look.format = kind.name;
  find_odd(kind, name, look.odd);
  find_odd_size(look.seen, look.odd);
}

/// Any thread.
Look look_at(const data::Source& source, int64_t index) {
  Look look;
  look.seen.index = index;
  try {
    look_at(source, index, look);
  } catch (const UserError& error) {
    look.reason = error.what();
  }
  return look;
}

}  // namespace

Inspection inspect(const data::Source& source, const InspectOptions& options,
                   const std::function<void(int64_t, int64_t)>& progress) {
  Inspection result;
  result.samples = source.size();
  result.classes = source.classes();
  result.class_counts.resize(result.classes.size());
  for (int64_t i = 0; i < source.size(); ++i) {
    const int64_t label = source.label(i);
    if (label >= 0) ++result.class_counts.at(static_cast<size_t>(label));
  }
  const int64_t count = options.full ? source.size() : std::min(options.samples, source.size());
  result.full = count == source.size();
  InOrder<Look>::run(
      0, count, options.workers, [&](int64_t i) { return look_at(source, i * source.size() / count); },
      [&](int64_t i, Look look) {
        if (look.reason.empty()) {
          result.seen.push_back(look.seen);
          ++result.formats[look.format];
          for (const auto& name : look.odd) result.odd[name].push_back(look.seen.index);
        } else {
          result.broken.push_back({look.seen.index, source.sample_name(look.seen.index), look.reason});
        }
        if (progress) progress(i + 1, count);
      });
  // What most samples are is the data set's way.
  std::erase_if(result.odd, [&](const auto& entry) { return 2 * entry.second.size() > result.seen.size(); });
  return result;
}

Spread spread_of(std::vector<int64_t> values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {*least, *middle, *most};
}

std::vector<int64_t> values_of(const Inspection& inspection,
                               const std::function<int64_t(const Seen&)>& property) {
  std::vector<int64_t> values;
  values.reserve(inspection.seen.size());
  for (const Seen& seen : inspection.seen) values.push_back(property(seen));
  return values;
}

}  // namespace tessera::prepare
