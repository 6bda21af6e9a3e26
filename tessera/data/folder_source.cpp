// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/data/class_names.h"
#include "tessera/data/in_parallel.h"
#include "tessera/data/indexed_source.h"
#include "tessera/data/left_out.h"
#include "tessera/data/open_source.h"
#include "tessera/data/sample_file.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFolderSource = "data.open_folder";
constexpr const char* kSplits[] = {"train", "val", "validation", "test"};  // what they are mostly called

struct Listing {
  std::vector<std::string> folders, images, others;  // sorted by bytes, the same on every machine
};

/// Hidden entries are left out. A dangling link with an image's name counts as an image, and breaks as one.
/// Names are bytes: any encoding.
Listing list(const FileSystem& files, const fs::path& folder) {
  Listing listing;
  std::error_code error;
  for (FolderEntry& entry : files.list(folder, error)) {
    if (is_hidden(entry.name)) continue;
    if (entry.is_folder) {
      listing.folders.push_back(std::move(entry.name));
    } else {
      (is_image_name(entry.name) ? listing.images : listing.others).push_back(std::move(entry.name));
    }
  }
  if (error)
    user_error({.where = kFolderSource,
                .problem = concat("cannot read folder ", folder.string(), ": ", error.message())});
  for (auto* names : {&listing.folders, &listing.images, &listing.others})
    std::sort(names->begin(), names->end());
  return listing;
}

/// `root`/<class>/<image>, for the classes that have a folder there; names in messages start with the split.
class FolderSource : public IndexedSource {
 public:
  FolderSource(fs::path root, OpenedIndex opened, const FileSystem& files)
      : IndexedSource(std::move(opened)), root_(std::move(root)), files_(files) {
    for (const std::string& name : classes()) class_folders_.push_back((root_ / name).string());
  }
  std::string sample_name(int64_t i) const override { return (root_.filename() / relative(i)).string(); }
  Location location(int64_t i) const override {
    if (label(i) < 0) return {};
    return {class_folders_[static_cast<size_t>(label(i))], index().name(i)};
  }

 private:
  std::string fetch(int64_t i) const override { return read_sample_file(files_, root_ / relative(i)); }
  fs::path relative(int64_t i) const {
    return fs::path(classes()[static_cast<size_t>(label(i))]) / index().name(i);
  }
  const fs::path root_;
  const FileSystem& files_;
  std::vector<std::string> class_folders_;
};

void check_folders(const fs::path& root, const std::vector<std::string>& folders,
                   const std::vector<std::string>& classes) {
  for (const auto& name : folders) {
    if (std::binary_search(classes.begin(), classes.end(), name)) continue;
    const std::string near = nearest(name, classes);
    const fs::path train = root.parent_path() / "train";
    user_error({.where = kFolderSource,
                .problem = concat("class '", name, "' is in ", root.string(), " but not in ", train.string()),
                .expected = "the classes of the train split",
                .hint = near.empty() ? concat("make the folder ", (train / name).string(), ", or remove ",
                                              (root / name).string())
                                     : concat("did you mean '", near, "'?")});
  }
}

/// What lies in a class folder and is no image.
void count_others(const fs::path& folder, const Listing& listing, LeftOut& left_out) {
  for (const auto& name : listing.others)
    left_out.add(fs::path(name).extension().string(), (folder / name).string());
  for (const auto& name : listing.folders) left_out.add_folder((folder / name).string());
}

void build_index(const FileSystem& files, const fs::path& root, const std::vector<std::string>& folders,
                 const std::vector<std::string>& classes, IndexBuilder& builder) {
  std::vector<Listing> listings(folders.size());
  in_parallel(folders.size(), kInputThreads, [&](size_t i) { listings[i] = list(files, root / folders[i]); });
  LeftOut left_out;
  builder.set_files({root.filename().string()});
  builder.set_classes(classes);
  for (size_t i = 0; i < folders.size(); ++i) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), folders[i]);
    const auto& images = listings[i].images;
    for (const auto& name : images) builder.add({.name = name, .label = found - classes.begin()});
    count_others(root / folders[i], listings[i], left_out);
    if (images.empty()) {
      builder.note(concat("[", kFolderSource, "] class folder ", escape((root / folders[i]).string()),
                          " has no images"));
    }
  }
  const std::string others = left_out.text();
  if (!others.empty()) {
    builder.note(
        concat("[", kFolderSource, "] only images named .jpg, .jpeg or .png in class folders: ", others));
  }
  if (builder.size() > 0) return;
  user_error({.where = kFolderSource,
              .problem = concat("the class folders in ", root.string(), " have no images",
                                others.empty() ? "" : concat(": ", others)),
              .expected = "files named .jpg, .jpeg or .png"});
}

fs::path find_split(const FileSystem& files, const fs::path& folder, const std::string& split) {
  const auto names = accepted_splits(split);
  for (const auto& name : names) {
    if (files.is_folder(folder / name)) return folder / name;
  }
  const Listing found = list(files, folder);
  const bool classes_at_top =
      std::any_of(found.folders.begin(), found.folders.end(),
                  [&](const std::string& name) { return !list(files, folder / name).images.empty(); });
  if (classes_at_top) {
    // The split's own folder was given where the one above it is meant.
    const std::string own = folder.filename().string();
    const bool is_split = std::ranges::any_of(kSplits, [&](const char* name) { return own == name; });
    user_error({.where = kFolderSource,
                .problem = concat(folder.string(), " has class folders at the top"),
                .expected = concat("a folder ", join(names, " or "), " that holds the class folders"),
                .hint = is_split ? concat("give the folder that holds ", own,
                                          ": folder:", folder.parent_path().string())
                                 : concat("move them to ", (folder / names[0]).string())});
  }
  const std::string near = nearest(split, found.folders);
  user_error({.where = kFolderSource,
              .problem = concat("there is no split '", split, "' in ", folder.string()),
              .expected = concat("a folder ", join(names, " or "), ", found ",
                                 found.folders.empty() ? "no folder" : join(found.folders, ", ")),
              .hint = near.empty() ? "--split, data.train and data.val name the splits"
                                   : concat("did you mean ", near, "? (--split, data.train, data.val)")});
}

}  // namespace

std::unique_ptr<Source> open_folder(const fs::path& folder, const std::string& split,
                                    const SourceOptions& options) {
  const fs::path normal =
      (fs::absolute(folder) / "").lexically_normal().parent_path();  // without a slash at the end
  const FileSystem& files = *options.files;
  const fs::path root = find_split(files, normal, split);
  const fs::path train = normal / "train";
  const fs::path with_classes = files.is_folder(train) ? train : root;
  const auto folders = list(files, root).folders,
             classes = with_classes == root ? folders : list(files, with_classes).folders;
  if (classes.empty())
    user_error({.where = kFolderSource,
                .problem = concat(with_classes.string(), " has no folders"),
                .expected = "a folder for each class"});
  check_folders(root, folders, classes);
  warn_of_numeric_names(classes, kFolderSource, /*from_folders=*/true, options);
  IndexRequest request{"folder", normal, split, "", {root, with_classes}, {}};
  for (const auto& name : folders) request.inputs.push_back(root / name);
  request.build = [&](IndexBuilder& builder) { build_index(files, root, folders, classes, builder); };
  return std::make_unique<FolderSource>(root, open_index(request, options), files);
}

}  // namespace tessera::data
