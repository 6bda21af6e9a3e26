// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/wds_index.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/data/dali_index.h"
#include "tessera/data/open_source.h"
#include "tessera/formats/tar.h"

namespace tessera::data {
namespace {

constexpr uint64_t kMaxLabelBytes = uint64_t{1} << 20;

/// "dir/0001.seg.png": key "dir/0001", ending "seg.png" in small letters. No ending: no member of a sample.
struct NameParts {
  std::string_view key;
  std::string ending;
};

NameParts parts_of(std::string_view name) {
  const size_t base = name.rfind('/') + 1;  // npos + 1: 0
  const size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return {};  // no ending, or hidden
  return {name.substr(0, dot), lower(name.substr(dot + 1))};
}

/// The label in a JSON member; `problem` says why there is none.
std::optional<int64_t> label_in_json(const std::string& text, const std::string& field,
                                     const LabelReader& labels, std::string& problem) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const nlohmann::json* value = &json;
  for (size_t at = 0; at <= field.size() && value != nullptr;) {
    const size_t end = std::min(field.find('.', at), field.size());
    const std::string name = field.substr(at, end - at);
    value = value->is_object() && value->contains(name) ? &(*value)[name] : nullptr;
    at = end + 1;
  }
  if (value != nullptr && value->is_number_integer()) return labels.read(value->get<int64_t>(), problem);
  if (value != nullptr && value->is_string()) return labels.read_name(value->get<std::string>(), problem);
  if (json.is_discarded()) {
    problem = "the JSON member is not valid JSON";
  } else if (value == nullptr) {
    problem = concat("the JSON member has no field '", field, "': expected the label in this field");
  } else {
    problem = concat("field '", field, "' of the JSON member has type ", value->type_name(),
                     ": expected an integer or a string");
  }
  return std::nullopt;
}

/// Members with one key, one after the other.
struct Group {
  std::string key;
  std::optional<formats::TarMember> image;
  std::string label_ending, label_text;
  std::unordered_set<std::string> endings;
  std::vector<std::string> unused;  // names of members that are neither its image nor its label
  std::string problem;              // of the first thing that is wrong
  bool open() const { return !endings.empty(); }
};

class ShardWalk {
 public:
  // (More than 5 parameters: references that the walk holds.)
  ShardWalk(const WdsShard& shard, const WdsKeys& keys, const LabelReader& labels, bool gzipped,
            IndexBuilder& builder, LeftOut& left_out)
      : shard_(shard),
        keys_(keys),
        labels_(labels),
        method_(gzipped ? kGzipped : uint8_t{0}),
        builder_(builder),
        left_out_(left_out) {}

  void walk(formats::ByteStream& stream) {
    formats::TarReader reader(stream, shard_.path.string());
    try {
      while (auto member = reader.next()) take(*member, [&] { return reader.content(kMaxLabelBytes + 1); });
      flush();
      const bool marked = reader.ended_with_mark();
      stream.skip(UINT64_MAX);  // to the trailer of a gzip file: its CRC is of all that was read
      if (!marked) {
        builder_.note(
            concat("[data.wds] ", shard_.path.string(), " has no end mark; the archive may be cut off"));
      }
    } catch (const UserError& error) {
      if (!reader.last_is_whole() && group_.open()) {
        group_.problem = error.what();
        flush();
      } else {
        flush();
        add_lost(error.what());
      }
    }
  }

  /// True where the index of DALI agrees with the archive; else nothing was added.
  bool use_dali_index(const ByteSource& archive) {
    std::string problem;
    IndexBuilder start;
    const LeftOut left_out_before = left_out_;
    std::swap(start, builder_);
    try {
      problem = read_dali_index(shard_.files->read_whole(*shard_.dali_index),
                                [&](std::span<const DaliMember> members) {
                                  for (const auto& member : members) take_indexed(archive, member);
                                  flush();
                                });
    } catch (const UserError& error) {
      problem = error.what();
    }
    std::swap(start, builder_);
    if (problem.empty()) {
      builder_.append(std::move(start));
      return true;
    }
    group_ = {};
    keys_seen_.clear();
    left_out_ = left_out_before;
    builder_.note(concat("[data.wds] DALI index ", shard_.dali_index->string(), " does not fit ",
                         shard_.path.string(), " (", problem, "); the archive itself is read"));
    return false;
  }

  void add_lost(const std::string& problem) {
    builder_.add_broken({.name = "?", .file = shard_.number}, problem);
  }

 private:
  template <typename Content>
  void take(const formats::TarMember& member, const Content& content) {
    if (is_hidden(member.name)) return;
    const NameParts parts = parts_of(member.name);
    if (parts.ending.empty()) return leave_out(member.name);
    if (parts.key != group_.key || !group_.open()) {
      flush();
      group_.key = parts.key;
      if (keys_seen_.contains(group_.key))
        group_.problem = concat("key ", escape(group_.key), " occurs twice: expected each key once");
    }
    if (!group_.endings.insert(parts.ending).second && group_.problem.empty()) {
      group_.problem = concat("member ", escape(member.name), " occurs twice: expected each member once");
      return;
    }
    if (is_image(parts.ending)) {
      if (group_.image) {
        group_.unused.push_back(member.name);
      } else {
        group_.image = member;
      }
    } else if (is_label(parts.ending)) {
      group_.label_text = content();
      group_.label_ending = parts.ending;
      if (group_.label_text.size() > kMaxLabelBytes) {
        group_.problem = concat("the label is too long: expected at most ", kMaxLabelBytes, " bytes");
      }
    } else {
      group_.unused.push_back(member.name);
    }
  }

  void leave_out(const std::string& name) {
    left_out_.add(ending_of(name), concat(name, " of ", shard_.path.filename().string()));
  }
  /// Whether an unused member of a used sample may come from a different sample: a second image "a.png", and
  /// "a.b.jpg" together with "a.b.cls" beside "a.jpg" and "a.cls". A mask "a.seg.png" has no label and so is
  /// part of "a". Settings that name endings say what is wanted.
  bool looks_like_a_sample(const std::string& name, const Group& group) const {
    const std::string ending = parts_of(name).ending;
    const size_t dot = ending.rfind('.');
    const std::string last = ending.substr(dot + 1);  // npos + 1: all of it
    const bool image = keys_.image.empty() && is_image(last), label = keys_.label.empty() && last == "cls";
    if (dot == std::string::npos) return image;
    const std::string stem = ending.substr(0, dot + 1);
    const auto has = [&](const std::string& other) { return group.endings.contains(stem + other); };
    if (image) return has(group.label_ending);
    return label && (keys_.image.empty() ? has("jpg") || has("jpeg") || has("png") : has(keys_.image));
  }

  /// A member that DALI's index names: its header must stand before its content.
  void take_indexed(const ByteSource& archive, const DaliMember& indexed) {
    constexpr uint64_t kHeader = 512;
    const bool label = is_label(std::string(indexed.ending));
    const bool check = label || builder_.size() == 0;  // each label is read anyway; of the images the first
    formats::TarMember member{std::string(indexed.name), indexed.offset, indexed.size};
    if (indexed.offset < kHeader || indexed.offset > archive.size() ||
        indexed.size > archive.size() - indexed.offset) {
      user_error({.where = "data.wds",
                  .problem = concat("DALI's index has a member of ", indexed.size, " bytes from ",
                                    indexed.offset, ", which is not inside the archive")});
    }
    formats::FileStream stream(archive, 2 * kHeader);
    formats::TarReader reader(stream, shard_.path.string());
    if (check) {
      stream.skip(indexed.offset - kHeader);
      const auto found = reader.next();
      // A long name stands in a header before this one, which holds its beginning.
      if (!found || found->offset != member.offset || found->size != member.size ||
          (!member.name.empty() && !member.name.starts_with(found->name))) {
        user_error({.where = "data.wds",
                    .problem = concat("the header of ", escape(member.name), " is not before byte ",
                                      member.offset)});
      }
      if (member.name.empty()) member.name = found->name;
    }
    if (member.name.empty()) member.name = concat(builder_.size(), ".", indexed.ending);
    take(member, [&] { return reader.content(kMaxLabelBytes + 1); });
  }

  bool is_image(const std::string& ending) const {
    if (!keys_.image.empty()) return ending == keys_.image;
    return ending == "jpg" || ending == "jpeg" || ending == "png";
  }
  bool is_label(const std::string& ending) const {
    if (!keys_.label.empty()) return ending == keys_.label;
    return ending == "cls" || (ending == "json" && group_.label_ending != "cls");
  }

  std::optional<int64_t> label_of(const Group& group, std::string& problem) const {
    if (group.label_ending.empty()) {
      problem = concat("the sample has no label: expected a member .",
                       keys_.label.empty() ? "cls or .json" : keys_.label);
      return std::nullopt;
    }
    const bool json = !keys_.json_field.empty() || (keys_.label.empty() && group.label_ending == "json");
    if (!json) return labels_.read(group.label_text, problem);
    return label_in_json(group.label_text, keys_.json_field.empty() ? "label" : keys_.json_field, labels_,
                         problem);
  }

  /// Ends the group: a sample, a broken one, or nothing where it held nothing of a sample (a README).
  void flush() {
    const Group group = std::exchange(group_, {});
    if (!group.open()) return;
    const bool is_sample = group.image || !group.label_ending.empty() || !group.problem.empty();
    for (const std::string& name : group.unused) {
      if (!is_sample || looks_like_a_sample(name, group)) leave_out(name);
    }
    if (!is_sample) return;
    keys_seen_.insert(group.key);
    IndexedSample sample{.name = group.key, .file = shard_.number, .method = method_};
    if (group.image) {
      sample.name = group.image->name;
      sample.offset = group.image->offset;
      sample.size = group.image->size;
    }
    std::string problem = group.problem;
    if (problem.empty() && !group.image) {
      problem = concat("the sample has no image: expected a member .",
                       keys_.image.empty() ? "jpg, .jpeg or .png" : keys_.image);
    }
    const auto label = problem.empty() ? label_of(group, problem) : std::nullopt;
    if (label) {
      sample.label = *label;
      builder_.add(sample);
    } else if (problem.starts_with('[')) {  // an error of the archive, which it names
      builder_.add_broken(sample, problem);
    } else {
      builder_.add_broken(sample,
                          with_location(concat("[data.wds] ", problem),
                                        concat("sample ", escape(group.key), " of ", shard_.path.string())));
    }
  }

  const WdsShard& shard_;
  const WdsKeys& keys_;
  const LabelReader& labels_;
  const uint8_t method_;
  IndexBuilder& builder_;
  LeftOut& left_out_;
  Group group_;
  std::unordered_set<std::string> keys_seen_;
};

}  // namespace

WdsKeys wds_keys(const SourceOptions& options) {
  const size_t colon = std::min(options.label_key.find(':'), options.label_key.size());
  WdsKeys keys{options.image_key, options.label_key.substr(0, colon), ""};
  if (colon < options.label_key.size()) keys.json_field = options.label_key.substr(colon + 1);
  if (keys.json_field.empty() && keys.label == "json") keys.json_field = "label";
  return keys;
}

void index_wds_shard(const WdsShard& shard, const WdsKeys& keys, const LabelReader& labels,
                     IndexBuilder& builder, LeftOut& left_out) {
  std::unique_ptr<const ByteSource> file;
  bool gzipped = false;
  try {
    file = shard.files->open(shard.path);
    gzipped = formats::is_gzip_file(*file);
  } catch (const UserError& error) {
    return builder.add_broken({.name = "?", .file = shard.number}, error.what());
  }
  ShardWalk walk(shard, keys, labels, gzipped, builder, left_out);
  if (gzipped) {
    try {
      formats::GzipStream stream(*file, kRestartSpan,
                                 [&](const auto& point, std::span<const std::byte> window) {
                                   builder.add_point(shard.number, point, window);
                                 });
      walk.walk(stream);
    } catch (const UserError& error) {
      walk.add_lost(error.what());
    }
    return;
  }
  if (shard.dali_index && walk.use_dali_index(*file)) return;
  formats::FileStream stream(*file);
  walk.walk(stream);
}

}  // namespace tessera::data
