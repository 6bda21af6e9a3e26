#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/data/open_source.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWhere = "data.open_folder";

bool is_image_name(const std::string& name) {
  std::string ending = fs::path(name).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

struct Listing {
  std::vector<std::string> folders, images;  // sorted by bytes, the same on every machine
};

/// Hidden entries are left out. A dangling link with an image's name counts as an image, and breaks as one.
Listing list(const fs::path& folder) {
  Listing listing;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::string name = entries->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(".")) continue;
    if (entries->is_directory(ignored)) {
      listing.folders.push_back(std::move(name));
    } else if (is_image_name(name)) {
      listing.images.push_back(std::move(name));
    }
  }
  if (error) user_error(kWhere, "a readable folder: ", folder.string(), ": ", error.message());
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.images.begin(), listing.images.end());
  return listing;
}

class FolderSource : public Source {
 public:
  /// `root`/<class>/<image>; names in messages start with the split.
  FolderSource(fs::path root, std::vector<std::string> classes)
      : root_(std::move(root)), classes_(std::move(classes)) {
    std::map<std::string, int64_t> label_of;
    for (size_t i = 0; i < classes_.size(); ++i) label_of[classes_[i]] = static_cast<int64_t>(i);
    for (const auto& name : list(root_).folders) {
      const auto found = label_of.find(name);
      if (found == label_of.end()) {
        const std::string near = nearest(name, classes_);
        user_error(kWhere, "the classes of the train split: found another one, '", name, "' (in ",
                   root_.string(), near.empty() ? ")" : concat("; the nearest is '", near, "')"));
      }
      for (auto& file : list(root_ / name).images) {
        files_.push_back(std::move(file));
        labels_.push_back(static_cast<int32_t>(found->second));
      }
    }
    if (files_.empty()) {
      user_error(kWhere, "images named .jpg, .jpeg or .png in the class folders: found none (in ",
                 root_.string(), ")");
    }
  }

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }
  Stored load(int64_t index) const override { return {read_file(root_ / relative(index)), {}}; }
  std::string sample_name(int64_t index) const override {
    return (root_.filename() / relative(index)).string();
  }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  fs::path relative(int64_t index) const {
    return fs::path(classes_[static_cast<size_t>(label(index))]) / files_[static_cast<size_t>(index)];
  }

  fs::path root_;
  std::vector<std::string> classes_;
  std::vector<std::string> files_;  // by class, then by name
  std::vector<int32_t> labels_;
};

std::vector<std::string> accepted_names(const std::string& split) {
  if (split == "val") return {"val", "validation", "test"};
  if (split == "validation") return {"validation", "val"};
  return {split};
}

fs::path find_split(const fs::path& folder, const std::string& split) {
  const auto names = accepted_names(split);
  for (const auto& name : names) {
    std::error_code ignored;
    if (fs::is_directory(folder / name, ignored)) return folder / name;
  }
  const Listing found = list(folder);
  const bool classes_at_top =
      std::any_of(found.folders.begin(), found.folders.end(),
                  [&](const std::string& name) { return !list(folder / name).images.empty(); });
  if (classes_at_top) {
    user_error(kWhere, "a folder ", join(names, " or "),
               " that holds the class folders: found class folders at the top (in ", folder.string(),
               "; move them to ", (folder / names[0]).string(), ")");
  }
  user_error(kWhere, "a folder ", join(names, " or "), ": found ",
             found.folders.empty() ? "no folder" : join(found.folders, ", "), " (in ", folder.string(), ")");
}

}  // namespace

std::unique_ptr<Source> open_folder(const fs::path& folder, const std::string& split) {
  const fs::path normal = (folder / "").lexically_normal().parent_path();  // without a slash at the end
  const fs::path root = find_split(normal, split);
  std::error_code ignored;
  const fs::path train = normal / "train";
  auto classes = list(fs::is_directory(train, ignored) ? train : root).folders;
  if (classes.empty()) {
    user_error(kWhere, "a folder for each class: found none (in ",
               (fs::is_directory(train, ignored) ? train : root).string(), ")");
  }
  return std::make_unique<FolderSource>(root, std::move(classes));
}

}  // namespace tessera::data
