// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/tfrecord_index.h"

#include <algorithm>
#include <array>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/formats/byte_stream.h"
#include "tessera/formats/tfrecord.h"

namespace tessera::data {
namespace {

using formats::Feature;
using formats::kRecordFooter;
using formats::kRecordHeader;

constexpr uint64_t kWindow = 2048;  // fetched at once: the features before an image, or those after it
constexpr uint64_t kMaxLabelText = 1024;

/// A record in a file of which only what is asked for is fetched.
class RecordInFile : public formats::RecordBytes {
 public:
  RecordInFile(const ByteSource& file, uint64_t begin, uint64_t size)
      : file_(file), begin_(begin), size_(size) {}
  uint64_t size() const override { return size_; }
  std::span<const std::byte> get(uint64_t at, uint64_t count) override {
    if (at < window_at_ || at + count > window_at_ + window_.size()) {
      window_.resize(std::min(std::max(count, kWindow), size_ - at));
      window_at_ = at;
      file_.read(begin_ + at, window_);
    }
    return std::span<const std::byte>(window_).subspan(at - window_at_, count);
  }

 private:
  const ByteSource& file_;
  const uint64_t begin_, size_;
  std::vector<std::byte> window_;
  uint64_t window_at_ = 0;
};

const Feature* find_first(const std::vector<Feature>& features, const std::string& key,
                          const std::vector<std::string>& usual) {
  if (!key.empty()) return formats::find_feature(features, key);
  for (const auto& name : usual) {
    if (const Feature* found = formats::find_feature(features, name)) return found;
  }
  return nullptr;
}

std::string missing(const char* what, const std::string& key, const std::vector<std::string>& usual,
                    const std::vector<Feature>& features) {
  std::vector<std::string> names;
  for (const auto& feature : features) names.push_back(escape(feature.name));
  std::sort(names.begin(), names.end());  // writers give them in any order
  constexpr size_t kMost = 10;
  const bool all = names.size() <= kMost;
  if (!all) names.resize(kMost);
  return concat("the record has ",
                names.empty() ? "no features" : concat("features ", join(names, ", "), all ? "" : ", ..."),
                ": expected the ", what, " in ", key.empty() ? join(usual, " or ") : key);
}

/// Why a feature is not the one value that is expected.
std::string not_one(const Feature& feature, const char* expected) {
  const char* type = feature.kind == Feature::Kind::kIntegers ? " integer"
                     : feature.kind == Feature::Kind::kBytes  ? " bytes"
                     : feature.kind == Feature::Kind::kFloats ? " float"
                                                              : "";
  return concat("feature ", escape(feature.name), " has ", feature.count, type,
                feature.count == 1 ? " value" : " values", ": expected ", expected);
}

const std::vector<std::string> kImages = {"image/encoded", "image"};
const std::vector<std::string> kLabels = {"image/class/label", "label"};

class FileWalk {
 public:
  FileWalk(const std::filesystem::path& path, uint32_t number, const ExampleKeys& keys,
           const LabelReader& labels, IndexBuilder& builder)
      : path_(path), number_(number), keys_(keys), labels_(labels), builder_(builder) {}

  void walk_plain(const ByteSource& file) {
    for (uint64_t at = 0; at < file.size();) {
      std::array<std::byte, kRecordHeader> header{};
      const uint64_t left = file.size() - at;
      if (left < kRecordHeader + kRecordFooter) return lost(at, "the file is cut off inside a record");
      file.read(at, header);
      const auto length = formats::record_length(header);
      if (!length) return lost(at, "the CRC of the length of a record is wrong");
      if (*length > left - kRecordHeader - kRecordFooter)
        return lost(at, "the file is cut off inside a record");
      RecordInFile record(file, at + kRecordHeader, *length);
      add(record, at, 0);
      at += kRecordHeader + *length + kRecordFooter;
    }
  }

  void walk_gzipped(formats::ByteStream& stream) {
    while (true) {
      const uint64_t at = stream.position();
      std::string frame = formats::read_text(stream, kRecordHeader);
      if (frame.empty()) return;
      if (frame.size() < kRecordHeader) return lost(at, "the file is cut off inside a record");
      const auto length = formats::record_length(std::as_bytes(std::span(frame)));
      if (!length) return lost(at, "the CRC of the length of a record is wrong");
      frame += formats::read_text(stream, *length + kRecordFooter);
      if (frame.size() < kRecordHeader + *length + kRecordFooter)
        return lost(at, "the file is cut off inside a record");
      try {
        formats::WholeRecord record(formats::record_payload(std::as_bytes(std::span(frame)), where(at)));
        add(record, at, kGzipped);
      } catch (const UserError& error) {
        add_broken(at, error.what());
      }
    }
  }

  void add_broken(uint64_t at, const std::string& problem) {
    const std::string name = concat("[", builder_.size(), "]");
    builder_.add_broken({.name = name, .file = number_, .offset = at}, problem);
  }

 private:
  std::string where(uint64_t at) const { return concat("byte ", at, " of ", path_.string()); }
  void lost(uint64_t at, const std::string& problem) {
    add_broken(at,
               concat("[data.tfrecord] ", problem, " (", where(at), "); the rest of the file is not used"));
  }

  void add(formats::RecordBytes& record, uint64_t at, uint8_t method) {
    std::string problem;
    try {
      const auto features = formats::read_example(record, where(at));
      const auto label = label_of(record, features, problem);
      if (label && find_image(features, keys_, problem) != nullptr) {
        const std::string name = concat("[", builder_.size(), "]");
        builder_.add({.name = name,
                      .label = *label,
                      .file = number_,
                      .offset = at,
                      .size = kRecordHeader + record.size() + kRecordFooter,
                      .method = method});
        return;
      }
    } catch (const UserError& error) {
      return add_broken(at, error.what());
    }
    add_broken(at, with_location(concat("[data.tfrecord] ", problem), where(at)));
  }

  std::optional<int64_t> label_of(formats::RecordBytes& record, const std::vector<Feature>& features,
                                  std::string& problem) const {
    const Feature* label = find_first(features, keys_.label, kLabels);
    if (label == nullptr) {
      problem = missing("label", keys_.label, kLabels, features);
      return std::nullopt;
    }
    if (label->kind == Feature::Kind::kIntegers && label->count == 1)
      return labels_.read(label->integer, problem);
    if (label->kind == Feature::Kind::kBytes && label->count == 1 && label->size <= kMaxLabelText) {
      const auto text = record.get(label->offset, label->size);
      return labels_.read_name(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()),
                               problem);
    }
    problem = not_one(*label, "one integer or one text as the label");
    if (label->kind == Feature::Kind::kBytes && label->count == 1) {
      problem = concat("feature ", escape(label->name), " has ", label->size,
                       " bytes: expected a label of at most ", kMaxLabelText, " bytes");
    }
    return std::nullopt;
  }

  const std::filesystem::path& path_;
  const uint32_t number_;
  const ExampleKeys& keys_;
  const LabelReader& labels_;
  IndexBuilder& builder_;
};

}  // namespace

const Feature* find_image(const std::vector<Feature>& features, const ExampleKeys& keys,
                          std::string& problem) {
  const Feature* image = find_first(features, keys.image, kImages);
  if (image == nullptr) {
    problem = missing("image", keys.image, kImages, features);
  } else if (image->kind != Feature::Kind::kBytes || image->count != 1) {
    problem = not_one(*image, "the bytes of one image file");
  } else {
    return image;
  }
  return nullptr;
}

void index_tfrecord_file(const RecordFile& record_file, const ExampleKeys& keys, const LabelReader& labels,
                         IndexBuilder& builder) {
  FileWalk walk(record_file.path, record_file.number, keys, labels, builder);
  try {
    const auto file = record_file.files->open(record_file.path);
    if (!formats::is_gzip_file(*file)) return walk.walk_plain(*file);
    formats::GzipStream stream(*file, kRestartSpan,
                               [&](const auto& point, std::span<const std::byte> window) {
                                 builder.add_point(record_file.number, point, window);
                               });
    walk.walk_gzipped(stream);
  } catch (const UserError& error) {
    walk.add_broken(0, error.what());
  }
}

}  // namespace tessera::data
