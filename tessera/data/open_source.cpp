// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/open_source.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOpenSource = "data.open_source";
const std::vector<std::string> kKinds = {"folder", "zip", "wds", "tfrecord", "idx", "cifar", "fake"};

void check_folder(const fs::path& folder, const SourceOptions& options) {
  const std::string& key = options.key;
  const FileSystem& files = *options.files;
  const auto refuse = [&](const std::string& found) {
    user_error(
        {.where = kOpenSource,
         .problem = concat(folder.string(), found),
         .expected = "a folder of data",
         .hint = key.empty() ? "" : concat(key, " names it; set another: --set ", key, "=folder:PATH")});
  };
  if (!files.exists(folder)) refuse(" does not exist");
  if (!files.is_folder(folder)) refuse(" is a file");
  std::error_code unreadable;
  const bool is_empty = files.list(folder, unreadable).empty();
  if (unreadable) refuse(": " + unreadable.message());
  if (is_empty) refuse(" is empty");
}

/// Each kind looks at its own settings; one that was given to another kind was meant to do something.
void warn_of_unused(const std::string& kind, const SourceOptions& options) {
  const bool keys = kind == "wds" || kind == "tfrecord", labels = keys || kind == "zip";
  std::vector<std::string> unused;
  if (!keys && !options.image_key.empty()) unused.emplace_back("data.image_key");
  if (!keys && !options.label_key.empty()) unused.emplace_back("data.label_key");
  if (!labels && options.label_offset != 0) unused.emplace_back("data.label_offset");
  if (!labels && !options.classes.empty()) unused.emplace_back("data.classes");
  if (unused.empty() || !options.warn) return;
  const bool one = unused.size() == 1;
  options.warn(concat("[", kOpenSource, "] ", join(unused, ", "), one ? " has" : " have", " no effect with ",
                      kind, ": sources; remove ", one ? "it" : "them"));
}

std::unique_ptr<Source> open_path(const fs::path& folder, const std::string& split,
                                  const SourceOptions& options) {
  check_folder(folder, options);
  const bool idx = holds_idx_files(folder, options);
  warn_of_unused(idx ? "idx" : "folder", options);
  return idx ? open_idx(folder, split, options) : open_folder(folder, split, options);
}

}  // namespace

bool is_image_name(std::string_view name) {
  const std::string ending = lower(name.substr(std::min(name.rfind('.'), name.size())));
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

std::vector<std::string> accepted_splits(const std::string& split) {
  if (split == "val") return {"val", "validation", "test"};
  if (split == "validation") return {"validation", "val"};
  return {split};
}

Image Source::read(int64_t index, int64_t channels) const {
  Stored stored = load(index);
  if (stored.file.empty() && !stored.pixels.pixels.empty()) {
    return formats::convert_channels(std::move(stored.pixels), channels);
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(stored.file.data());
  return formats::convert_channels(formats::decode_image({bytes, stored.file.size()}, sample_name(index)),
                                   channels);
}

std::unique_ptr<Source> open_source(const std::string& spec, const std::string& split,
                                    const SourceOptions& options) {
  if (spec.empty())
    user_error({.where = kOpenSource,
                .problem = "data.source is empty",
                .expected = "a source such as folder:PATH"});
  const size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  const std::string path = colon == std::string::npos ? "" : spec.substr(colon + 1);
  const FileSystem& files = *options.files;
  if (kind == "fake" && (colon != std::string::npos || !files.exists(spec))) {
    warn_of_unused(kind, options);
    return open_fake(path, split, options);
  }
  if (colon == std::string::npos || files.exists(spec)) return open_path(spec, split, options);
  const bool known = std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
  if (!known) {
    const std::string near = nearest(kind, kKinds);
    user_error({.where = kOpenSource,
                .problem = concat("data source ", spec, " has the unknown kind '", kind, "'"),
                .expected = concat("one of ", join(kKinds, ", ")),
                .hint = near.empty() ? "" : concat("did you mean ", near, ":", path, "?")});
  }
  if (path.empty())
    user_error({.where = kOpenSource,
                .problem = concat("data source ", spec, " has no path"),
                .expected = concat(kind, ":PATH")});
  warn_of_unused(kind, options);
  if (kind == "wds") return open_wds(path, split, options);
  if (kind == "tfrecord") return open_tfrecord(path, split, options);
  if (kind == "cifar") return open_cifar(path, split, options);
  check_folder(path, options);
  if (kind == "zip") return open_zip(path, split, options);
  return kind == "idx" ? open_idx(path, split, options) : open_folder(path, split, options);
}

}  // namespace tessera::data
