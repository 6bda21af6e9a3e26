// SPDX-License-Identifier: Apache-2.0
// Zipped ImageNet: <split>.zip, read in place, and <split>_map.txt.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/data/class_names.h"
#include "tessera/data/indexed_source.h"
#include "tessera/data/left_out.h"
#include "tessera/data/open_source.h"
#include "tessera/data/zip_map.h"
#include "tessera/formats/zip_directory.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kZipSource = "data.open_zip";

class ZipSource : public IndexedSource {
 public:
  ZipSource(std::unique_ptr<const ByteSource> archive, OpenedIndex opened)
      : IndexedSource(std::move(opened)), archive_(std::move(archive)) {}
  Location location(int64_t i) const override {
    const IndexedSample sample = index().sample(i);
    return {archive_->path().native(), sample.name, sample.offset};
  }

 private:
  std::string fetch(int64_t i) const override {
    const IndexedSample sample = index().sample(i);
    return formats::read_zip_member(*archive_, {.name = std::string(sample.name),
                                                .size = sample.unpacked,
                                                .packed_size = sample.size,
                                                .header = sample.offset,
                                                .crc32 = sample.crc32,
                                                .method = sample.method});
  }
  const std::unique_ptr<const ByteSource> archive_;
};

/// The files of one split; the map may be missing.
struct ZipFiles {
  fs::path archive, map;
  std::string stem;  // "train"
  const FileSystem* where = nullptr;
  bool has_map() const { return !map.empty(); }
};

std::optional<ZipFiles> find_files(const FileSystem& where, const fs::path& folder, const std::string& stem) {
  ZipFiles files{folder / (stem + ".zip"), folder / (stem + "_map.txt"), stem, &where};
  if (!where.exists(files.archive)) return std::nullopt;
  if (!where.exists(files.map)) files.map.clear();
  return files;
}

ZipFiles find_archive(const FileSystem& where, const fs::path& folder, const std::string& split) {
  const auto names = accepted_splits(split);
  for (const auto& name : names) {
    if (auto files = find_files(where, folder, name)) return *files;
  }
  std::vector<std::string> expected, found;
  for (const auto& name : names) expected.push_back(name + ".zip");
  std::error_code ignored;
  for (FolderEntry& entry : where.list(folder, ignored)) {
    if (fs::path(entry.name).extension() == ".zip") found.push_back(std::move(entry.name));
  }
  std::sort(found.begin(), found.end());
  user_error({.where = kZipSource,
              .problem = concat(folder.string(), " has ", found.empty() ? "no archive" : join(found, ", ")),
              .expected = join(expected, " or ")});
}

/// The folder that holds a member: "n01440764" of "train/n01440764/1.JPEG".
std::string folder_of(std::string_view name) {
  const size_t end = name.rfind('/');
  if (end == std::string_view::npos) return {};
  name = name.substr(0, end);
  return std::string(name.substr(name.rfind('/') + 1));  // npos + 1: all of it
}

/// Every class by its folder, where the map says of each folder one label and of each label one folder; else
/// none. `offset` is added to the labels of the map.
std::vector<std::string> folder_names(const std::string& map, int64_t offset) {
  std::map<int64_t, std::string> names;
  std::map<std::string, int64_t> labels;
  bool one_to_one = true;
  const LabelReader numbers({}, offset);
  std::string ignored;
  read_map(map, [&](const MapLine& line) {
    const auto label = numbers.read(line.label, ignored);
    if (!one_to_one || !label) return;
    const std::string folder = folder_of(line.name);
    one_to_one = !folder.empty() && names.try_emplace(*label, folder).first->second == folder &&
                 labels.try_emplace(folder, *label).first->second == *label;
  });
  if (!one_to_one || names.empty() || names.rbegin()->first + 1 != static_cast<int64_t>(names.size()))
    return {};
  std::vector<std::string> in_order;
  for (auto& [label, name] : names) in_order.push_back(std::move(name));
  return in_order;
}

/// The members of an archive by name, without hidden ones and folders. Of two of one name the later one is
/// meant, as zip's own tools do.
class Members {
 public:
  Members(const ZipFiles& files, IndexBuilder& builder) : prefix_(files.stem + "/") {
    const auto archive = files.where->open(files.archive);
    int64_t twice = 0;
    std::string example;
    formats::visit_zip_directory(*archive, [&](formats::ZipMember member) {
      if (member.name.ends_with('/') || is_hidden(member.name)) return;
      members_.push_back(std::move(member));
      const formats::ZipMember* latest = &members_.back();
      const auto [place, is_new] = by_name_.try_emplace(latest->name, latest);
      if (is_new) return;
      if (twice++ == 0) example = latest->name;
      place->second = latest;
    });
    if (twice > 0) {
      builder.note(concat("[", kZipSource, "] ", files.archive.string(), " has ", twice,
                          twice == 1 ? " member" : " members", " with a repeated name (", escape(example),
                          "); the last member of each name is used"));
    }
  }
  /// By its name, or with the split's folder before it ("train/n01440764/1.JPEG").
  const formats::ZipMember* find(std::string_view name) const {
    auto found = by_name_.find(name);
    if (found == by_name_.end()) found = by_name_.find(concat(prefix_, name));
    return found == by_name_.end() ? nullptr : found->second;
  }
  /// Each name once, in the order of the archive.
  std::vector<const formats::ZipMember*> in_order() const {
    std::vector<const formats::ZipMember*> members;
    for (const formats::ZipMember& member : members_) {
      if (by_name_.at(member.name) == &member) members.push_back(&member);
    }
    return members;
  }

 private:
  std::string prefix_;
  std::deque<formats::ZipMember> members_;  // which stay where they are: the names are views into them
  std::unordered_map<std::string_view, const formats::ZipMember*> by_name_;
};

IndexedSample place_of(const formats::ZipMember& member, int64_t label) {
  return {.name = member.name,
          .label = label,
          .offset = member.header,
          .size = member.packed_size,
          .unpacked = member.size,
          .crc32 = member.crc32,
          .method = static_cast<uint8_t>(std::min<uint16_t>(member.method, UINT8_MAX))};
}

void build_from_map(const ZipFiles& files, const std::string& map, const LabelReader& labels,
                    IndexBuilder& builder) {
  const Members members(files, builder);
  std::unordered_map<const formats::ZipMember*, int64_t> listed;  // and in which line
  read_map(map, [&](const MapLine& line) {
    const auto broken = [&](const std::string& what, const std::string& before_line = "") {
      builder.add_broken({.name = line.name},
                         with_location(concat("[data.zip] ", what), concat(before_line, "line ", line.number,
                                                                           " of ", files.map.string())));
    };
    const formats::ZipMember* member = members.find(line.name);
    if (member == nullptr) return broken(concat(escape(line.name), " is not in ", files.archive.string()));
    const auto [first, is_new] = listed.emplace(member, line.number);
    if (!is_new)
      return broken(concat(escape(line.name), " is listed in line ", first->second,
                           " already: expected each member once"));
    if (member->encrypted)
      return broken(concat(escape(line.name), " is encrypted; pack the archive without encryption"));
    std::string problem;
    const auto label = labels.read(line.label, problem);
    if (!label) return broken(problem, concat(escape(line.name), " in "));
    builder.add(place_of(*member, *label));
  });
  LeftOut unlisted;
  for (const formats::ZipMember* member : members.in_order()) {
    if (is_image_name(member->name) && !listed.contains(member))
      unlisted.add(ending_of(member->name), member->name);
  }
  if (unlisted.count() > 0) {
    builder.note(concat("[", kZipSource, "] ", unlisted.count(),
                        unlisted.count() == 1 ? " image of " : " images of ", files.archive.string(),
                        unlisted.count() == 1 ? " is not in " : " are not in ", files.map.filename().string(),
                        ": ", unlisted.text()));
  }
  if (builder.size() == 0)
    user_error({.where = kZipSource,
                .problem = concat(files.map.string(), " has no lines with a name and a label")});
}

/// Without a map a member's folder is its class.
void build_from_folders(const ZipFiles& files, const LabelReader& labels, IndexBuilder& builder) {
  const Members members(files, builder);
  std::vector<const formats::ZipMember*> images;
  LeftOut left_out;
  for (const formats::ZipMember* member : members.in_order()) {
    if (is_image_name(member->name)) {
      images.push_back(member);
    } else {
      left_out.add(ending_of(member->name), member->name);
    }
  }
  if (left_out.count() > 0) {
    builder.note(concat("[", kZipSource, "] only images named .jpg, .jpeg or .png of ",
                        files.archive.string(), ": ", left_out.text()));
  }
  std::sort(images.begin(), images.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const auto* member : images) {
    std::string problem;
    const auto label = labels.read_name(folder_of(member->name), problem);
    if (label) {
      builder.add(place_of(*member, *label));
    } else {
      builder.add_broken(
          {.name = member->name},
          with_location(concat("[data.zip] ", problem), concat("the class folder of ", escape(member->name),
                                                               " in ", files.archive.string())));
    }
  }
  if (images.empty()) {
    user_error({.where = kZipSource,
                .problem = concat(files.archive.string(), " has no images",
                                  left_out.count() == 0 ? "" : concat(": ", left_out.text())),
                .expected = "members named .jpg, .jpeg or .png"});
  }
}

std::vector<std::string> folders_of(const ZipFiles& files) {
  std::vector<std::string> names;
  formats::visit_zip_directory(*files.where->open(files.archive), [&](const formats::ZipMember& member) {
    if (!is_image_name(member.name) || is_hidden(member.name)) return;
    std::string folder = folder_of(member.name);
    if (names.empty() || names.back() != folder) names.push_back(std::move(folder));
  });
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty() || (names.size() == 1 && (names[0].empty() || names[0] == files.stem))) {
    user_error({.where = kZipSource,
                .problem = concat(files.archive.string(), " has no class folders"),
                .expected = concat("a map ", files.stem, "_map.txt beside it")});
  }
  return names;
}

/// The classes of an archive without a map: those of the training split, whose labels its map says.
std::vector<std::string> classes_without_map(const ZipFiles& files, const ZipFiles& with_classes,
                                             int64_t offset) {
  if (!with_classes.has_map()) return folders_of(with_classes);
  auto names = folder_names(with_classes.where->read_whole(with_classes.map), offset);
  if (names.empty()) {
    user_error({.where = kZipSource,
                .problem = concat(files.archive.string(), " has no map, and ", with_classes.map.string(),
                                  " does not give each class folder one label of its own"),
                .expected = concat("a map ", files.stem, "_map.txt beside it"),
                .hint = "write the map, or name the classes by data.classes"});
  }
  return names;
}

void build_index(const ZipFiles& files, const std::optional<ZipFiles>& train,
                 const std::optional<fs::path>& class_file, int64_t offset, IndexBuilder& builder) {
  const ZipFiles& with_classes = train ? *train : files;
  builder.set_files({files.archive.filename().string()});
  std::vector<std::string> names;
  if (class_file) names = read_class_names(*files.where, *class_file);
  if (!files.has_map()) {
    if (names.empty()) names = classes_without_map(files, with_classes, offset);
    build_from_folders(files, LabelReader(names, 0), builder);
    builder.set_classes(names);
    return;
  }
  if (names.empty() && offset == 0 && with_classes.has_map())
    names = folder_names(with_classes.where->read_whole(with_classes.map), 0);
  build_from_map(files, files.where->read_whole(files.map), LabelReader(names, offset), builder);
  if (names.empty()) {
    builder.number_classes();
  } else {
    builder.set_classes(names);
  }
}

}  // namespace

std::unique_ptr<Source> open_zip(const fs::path& folder, const std::string& split,
                                 const SourceOptions& options) {
  const fs::path normal = (fs::absolute(folder) / "").lexically_normal().parent_path();
  const FileSystem& where = *options.files;
  const ZipFiles files = find_archive(where, normal, split);
  const auto train = find_files(where, normal, "train");
  const auto class_file = find_class_file(options, normal);
  IndexRequest request{"zip",           normal, split, concat("label_offset ", options.label_offset),
                       {files.archive}, {}};
  if (files.has_map()) request.inputs.push_back(files.map);
  if (train) request.inputs.push_back(train->has_map() ? train->map : train->archive);
  if (class_file) request.inputs.push_back(*class_file);
  request.build = [&](IndexBuilder& builder) {
    build_index(files, train, class_file, options.label_offset, builder);
  };
  OpenedIndex opened = open_index(request, options);
  const bool from_folders = !files.has_map() && !class_file;
  warn_of_numeric_names(opened.index.classes(), kZipSource, from_folders, options);
  return std::make_unique<ZipSource>(where.open(files.archive), std::move(opened));
}

}  // namespace tessera::data
