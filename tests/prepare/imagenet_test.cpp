// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/imagenet.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/prepare/pack.h"
#include "tests/error_text.h"
#include "tests/prepare/memory_source.h"

namespace tessera::prepare {
namespace {
namespace fs = std::filesystem;

const fs::path kFixture = fs::path(TESSERA_SOURCE_DIR) / "tests/prepare/fixtures/imagenet";
const ImagenetArchives kArchives = {kFixture / "img_train.tar", kFixture / "img_val.tar",
                                    kFixture / "devkit_t12.tar.gz"};
using Names = std::vector<std::string>;

TEST(Imagenet, TheKitsClassesWithoutTheirAncestors) {
  const ImagenetDevkit kit = read_imagenet_devkit(kArchives.devkit);
  EXPECT_EQ(kit.wnids(), (Names{"n01440764", "n02100735", "n02119789", "n03000684"}));
  EXPECT_EQ(kit.wnid_of_id.at(1), "n02119789");
  EXPECT_EQ(kit.val_ids, (std::vector<int64_t>{3, 1, 4, 2, 3, 3}));
}

TEST(Imagenet, LabelsArePlacesInTheSortedListOfClasses) {
  const auto train = open_imagenet(kArchives, "train"), val = open_imagenet(kArchives, "val");
  EXPECT_EQ(train->classes(), val->classes());
  ASSERT_EQ(train->size(), 4 + 2 + 3 + 1);
  EXPECT_EQ(train->sample_name(0), "train/n01440764/n01440764_0.JPEG");
  EXPECT_EQ(train->load(5).file, "\xFF\xD8\xFFn02100735 1\xFF\xD9");
  EXPECT_EQ(train->label(9), 3);
  ASSERT_EQ(val->size(), 6);
  const std::vector<int64_t> labels = {0, 2, 3, 1, 0, 0};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(val->label(i), labels[static_cast<size_t>(i)]);
    EXPECT_EQ(val->load(i).file, concat("\xFF\xD8\xFFval ", i + 1, "\xFF\xD9"));
  }
  EXPECT_EQ(val->sample_name(1), "val/n02119789/ILSVRC2012_val_00000002.JPEG");
  // Without the kit train's own archives name the classes.
  EXPECT_EQ(open_imagenet({kArchives.train, {}, {}}, "train")->classes(), train->classes());
}

TEST(Imagenet, IntoFoldersAsOthersUnpackIt) {
  const TemporaryFolder folder("tessera-import");
  PackOptions options;
  options.form = Form::kFolder;
  pack([](const std::string& split) { return open_imagenet(kArchives, split); }, "imagenet", folder.path(),
       options);
  const auto files = files_of(folder.path());
  EXPECT_EQ(files.size(), 16U);
  EXPECT_EQ(files.at("train/n03000684/n03000684_0.JPEG"), "\xFF\xD8\xFFn03000684 0\xFF\xD9");
  EXPECT_EQ(files.at("val/n03000684/ILSVRC2012_val_00000003.JPEG"), "\xFF\xD8\xFFval 3\xFF\xD9");
}

/// A copy of the archives in which `change` may do damage.
struct Copy {
  TemporaryFolder folder{"tessera-import"};
  ImagenetArchives archives = {folder.path() / "img_train.tar", folder.path() / "img_val.tar",
                               folder.path() / "devkit_t12.tar.gz"};
  Copy() {
    for (const char* name : {"img_train.tar", "img_val.tar", "devkit_t12.tar.gz"}) {
      fs::copy_file(kFixture / name, folder.path() / name);
    }
  }
};

std::string error_of(const ImagenetArchives& archives, const std::string& split) {
  return error_text([&] { open_imagenet(archives, split); });
}

TEST(Imagenet, WrongArchivesAreNamed) {
  const Copy copy;
  ImagenetArchives archives = copy.archives;
  EXPECT_EQ(error_of({archives.train, archives.val, {}}, "val"),
            "[prepare.imagenet] --devkit is not given: expected the development kit, which has the classes "
            "of the validation images");
  EXPECT_EQ(error_of({archives.val, archives.val, archives.devkit}, "train"),
            concat("[prepare.imagenet] ", archives.val.string(),
                   " has the member ILSVRC2012_val_00000001.JPEG: expected a .tar file for each class, as in "
                   "ILSVRC2012_img_train.tar"));
  EXPECT_EQ(error_of({archives.train, archives.train, archives.devkit}, "val"),
            concat("[prepare.imagenet] ", archives.train.string(),
                   " has the member n01440764.tar: expected images ILSVRC2012_val_00000001 to 6, whose "
                   "classes the development kit has"));
  EXPECT_EQ(error_of({archives.train, archives.val, archives.val}, "train"),
            concat("[prepare.imagenet_devkit] ", archives.val.string(),
                   " has no data/meta.mat: expected a development kit such as ILSVRC2012_devkit_t12.tar.gz"));
}

TEST(Imagenet, ArchivesThatAreCutOffAreNoticedBeforeAnythingIsWritten) {
  const Copy copy;
  fs::resize_file(copy.archives.train, 20'000);
  EXPECT_NE(error_of(copy.archives, "train").find("is cut off"), std::string::npos)
      << error_of(copy.archives, "train");
  fs::resize_file(copy.archives.val, 3590);
  EXPECT_NE(error_of(copy.archives, "val").find("the archive is cut off"), std::string::npos)
      << error_of(copy.archives, "val");
  fs::resize_file(copy.archives.val, 3072);
  EXPECT_EQ(error_of(copy.archives, "val"),
            concat("[prepare.imagenet] ", copy.archives.val.string(),
                   " has 3 validation images: expected the 6 images of the development kit"));
}

}  // namespace
}  // namespace tessera::prepare
