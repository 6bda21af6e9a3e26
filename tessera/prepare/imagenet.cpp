// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/imagenet.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/data/sample_file.h"
#include "tessera/formats/tar.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

constexpr const char* kImagenet = "prepare.imagenet";

/// A stretch of a file; positions are those of the file.
class RangeStream : public formats::ByteStream {
 public:
  RangeStream(const FileReader& file, uint64_t begin, uint64_t end) : stream_(file), end_(end) {
    stream_.skip(begin);
  }
  size_t read(std::span<std::byte> bytes) override {
    return stream_.read(bytes.first(std::min<uint64_t>(bytes.size(), left())));
  }
  uint64_t skip(uint64_t count) override { return stream_.skip(std::min(count, left())); }
  uint64_t position() const override { return stream_.position(); }

 private:
  uint64_t left() const { return end_ - stream_.position(); }

  formats::FileStream stream_;
  uint64_t end_;
};

std::string base_name(const std::string& name) { return name.substr(name.rfind('/') + 1); }

/// Images at places of one file.
class ArchiveSource : public data::Source {
 public:
  ArchiveSource(fs::path archive, std::string split, std::vector<std::string> classes)
      : file_(std::move(archive)), split_(std::move(split)), classes_(std::move(classes)) {}

  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  int64_t label(int64_t index) const override { return entry(index).label; }
  data::Stored load(int64_t index) const override {
    const Entry& found = entry(index);
    data::check_sample_size(found.size, sample_name(index));
    data::Stored stored;
    stored.file.resize(found.size);
    file_.read(found.offset, std::as_writable_bytes(std::span(stored.file)));
    return stored;
  }
  std::string sample_name(int64_t index) const override {
    const Entry& found = entry(index);
    return concat(split_, "/", classes_[static_cast<size_t>(found.label)], "/", found.name);
  }
  const std::vector<std::string>& classes() const override { return classes_; }

  const FileReader& file() const { return file_; }
  void add(const formats::TarMember& member, int64_t label) {
    entries_.push_back({base_name(member.name), member.offset, member.size, static_cast<int32_t>(label)});
  }

 private:
  struct Entry {
    std::string name;
    uint64_t offset = 0, size = 0;
    int32_t label = 0;
  };
  const Entry& entry(int64_t index) const { return entries_[static_cast<size_t>(index)]; }

  FileReader file_;
  std::string split_;
  std::vector<std::string> classes_;
  std::vector<Entry> entries_;
};

int64_t label_of(const std::string& wnid, const std::vector<std::string>& wnids) {
  const auto found = std::lower_bound(wnids.begin(), wnids.end(), wnid);
  return found != wnids.end() && *found == wnid ? found - wnids.begin() : -1;
}

struct ClassTar {
  std::string wnid;
  uint64_t begin = 0, end = 0;
};

std::vector<ClassTar> class_tars(const FileReader& file) {
  formats::FileStream stream(file);
  formats::TarReader outer(stream, file.path().string());
  std::vector<ClassTar> tars;
  while (const auto member = outer.next()) {
    const std::string name = base_name(member->name);
    if (!name.ends_with(".tar")) {
      user_error({.where = kImagenet,
                  .problem = concat(file.path().string(), " has the member ", escape(member->name)),
                  .expected = "a .tar file for each class, as in ILSVRC2012_img_train.tar"});
    }
    tars.push_back({name.substr(0, name.size() - 4), member->offset, member->offset + member->size});
  }
  std::sort(tars.begin(), tars.end(), [](const ClassTar& a, const ClassTar& b) { return a.wnid < b.wnid; });
  return tars;
}

/// The classes of the kit, all of which have a tar; without a kit those that have one.
std::vector<std::string> check_classes(const std::vector<ClassTar>& tars, const ImagenetDevkit* kit,
                                       const fs::path& path) {
  std::vector<std::string> wnids;
  for (const ClassTar& tar : tars) wnids.push_back(tar.wnid);
  const auto twice = std::adjacent_find(wnids.begin(), wnids.end());
  if (wnids.empty() || twice != wnids.end()) {
    user_error({.where = kImagenet,
                .problem = concat(
                    path.string(), " has ",
                    wnids.empty() ? "no .tar file of a class" : concat("two .tar files of class ", *twice)),
                .expected = "one .tar file for each class"});
  }
  if (kit == nullptr || kit->wnids() == wnids) return wnids;
  for (const auto& wnid : kit->wnids()) {
    if (label_of(wnid, wnids) < 0) {
      user_error(
          {.where = kImagenet,
           .problem = concat(path.string(), " has no .tar file of class ", wnid, ", only those of ",
                             wnids.size(), " classes"),
           .expected = concat("one for each of the development kit's ", kit->wnid_of_id.size(), " classes")});
    }
  }
  const auto known = kit->wnids();
  const auto unknown =
      std::find_if(wnids.begin(), wnids.end(), [&](const auto& w) { return label_of(w, known) < 0; });
  user_error({.where = kImagenet,
              .problem = concat(path.string(), " has class ", *unknown,
                                ", which the development kit does not have")});
}

std::unique_ptr<data::Source> open_train(const fs::path& path, const ImagenetDevkit* kit) {
  std::vector<ClassTar> tars;
  {
    const FileReader file(path);
    tars = class_tars(file);
  }
  auto source = std::make_unique<ArchiveSource>(path, "train", check_classes(tars, kit, path));
  for (size_t label = 0; label < tars.size(); ++label) {
    RangeStream stream(source->file(), tars[label].begin, tars[label].end);
    formats::TarReader inner(stream, concat(path.string(), ": ", tars[label].wnid, ".tar"));
    while (const auto member = inner.next()) source->add(*member, static_cast<int64_t>(label));
  }
  return source;
}

/// The number in "ILSVRC2012_val_00000017.JPEG"; 0 where there is none.
int64_t val_number(const std::string& name) {
  const size_t at = name.rfind("_val_");
  int64_t number = 0;
  if (at != std::string::npos) std::from_chars(name.data() + at + 5, name.data() + name.size(), number);
  return number;
}

std::unique_ptr<data::Source> open_val(const fs::path& path, const ImagenetDevkit& kit) {
  const auto wnids = kit.wnids();
  auto source = std::make_unique<ArchiveSource>(path, "val", wnids);
  formats::FileStream stream(source->file());
  formats::TarReader tar(stream, path.string());
  while (const auto member = tar.next()) {
    const int64_t number = val_number(base_name(member->name));
    if (number < 1 || number > static_cast<int64_t>(kit.val_ids.size())) {
      user_error({.where = kImagenet,
                  .problem = concat(path.string(), " has the member ", escape(member->name)),
                  .expected = concat("images ILSVRC2012_val_00000001 to ", kit.val_ids.size(),
                                     ", whose classes the development kit has")});
    }
    source->add(*member, label_of(kit.wnid_of_id.at(kit.val_ids[static_cast<size_t>(number - 1)]), wnids));
  }
  if (source->size() != static_cast<int64_t>(kit.val_ids.size())) {
    user_error({.where = kImagenet,
                .problem = concat(path.string(), " has ", source->size(), " validation images"),
                .expected = concat("the ", kit.val_ids.size(), " images of the development kit")});
  }
  return source;
}

}  // namespace

std::unique_ptr<data::Source> open_imagenet(const ImagenetArchives& archives, const std::string& split) {
  ImagenetDevkit kit;
  if (!archives.devkit.empty()) kit = read_imagenet_devkit(archives.devkit);
  const ImagenetDevkit* known = archives.devkit.empty() ? nullptr : &kit;
  if (split == "train") return open_train(archives.train, known);
  if (known == nullptr)
    user_error({.where = kImagenet,
                .problem = "--devkit is not given",
                .expected = "the development kit, which has the classes of the validation images"});
  return open_val(archives.val, kit);
}

}  // namespace tessera::prepare
