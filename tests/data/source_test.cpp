// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "tessera/data/loader.h"
#include "tests/data/folder_maker.h"
#include "tests/data/shared_data.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;

std::string open_error(const std::string& spec, const std::string& split = "train") {
  return error_text([&] { open_source(spec, split, {}); });
}

TEST(OpenSource, Errors) {
  const TemporaryFolder temporary("tessera-data");
  const std::string root = temporary.path().string();
  EXPECT_EQ(open_error(""),
            "[data.open_source] a source such as folder:PATH: found nothing (set data.source)");
  EXPECT_EQ(open_error("fodler:x"),
            "[data.open_source] a kind of source (folder, zip, wds, tfrecord, idx, cifar, fake): found "
            "'fodler' in fodler:x (did you mean "
            "folder:x?)");
  EXPECT_EQ(open_error("s3:bucket"),
            "[data.open_source] a kind of source (folder, zip, wds, tfrecord, idx, cifar, fake): found 's3' "
            "in s3:bucket");
  EXPECT_EQ(open_error("idx:"), "[data.open_source] a path after idx: found nothing");
  for (const std::string kind : {"idx:", "folder:", ""}) {
    EXPECT_EQ(open_error(kind + root + "/none"),
              "[data.open_source] a data folder: " + root + "/none does not exist");
    EXPECT_EQ(open_error(kind + root), "[data.open_source] a data folder: " + root + " is empty");
  }
  write_text(temporary.path() / "file", "x");
  EXPECT_EQ(open_error(root + "/file"), "[data.open_source] a data folder: " + root + "/file is a file");
  EXPECT_EQ(error_text([&] { open_source(root + "/none", "train", {.key = "data.source"}); }),
            "[data.open_source] a data folder: " + root +
                "/none does not exist (data.source names it; set another: --set data.source=folder:PATH)");
}

TEST(FolderSource, SortedAndTheSameClassesInEverySplit) {
  const TemporaryFolder temporary("tessera-data");
  const fs::path root = temporary.path();
  write_image(root / "train" / "b" / "2.png", 20);
  write_image(root / "train" / "b" / "10.JPEG", 10);  // a PNG, whatever its name says
  write_image(root / "train" / "a" / "x.jpg", 30);
  write_image(root / "train" / "c" / "y.png", 40);
  write_text(root / "train" / "c" / "readme.txt", "no image");
  write_text(root / "train" / "c" / ".hidden.png", "no image");
  write_image(root / "validation" / "c" / "z.png", 50);
  const auto train = open_source("folder:" + root.string() + "/", "train", {});
  ASSERT_EQ(train->size(), 4);
  EXPECT_EQ(train->classes(), (std::vector<std::string>{"a", "b", "c"}));
  const std::vector<std::string> names = {"train/a/x.jpg", "train/b/10.JPEG", "train/b/2.png",
                                          "train/c/y.png"};
  const std::vector<int64_t> labels = {0, 1, 1, 2};
  const std::vector<int> levels = {30, 10, 20, 40};
  for (int64_t i = 0; i < 4; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(train->sample_name(i), names[at]);
    EXPECT_EQ(train->label(i), labels[at]);
    EXPECT_EQ(train->read(i, 3).pixels, std::vector<uint8_t>(192, static_cast<uint8_t>(levels[at])));
    EXPECT_EQ(train->read(i, 1).pixels, std::vector<uint8_t>(64, static_cast<uint8_t>(levels[at])));
  }
  const auto val = open_source(root.string(), "val", {});  // without a kind; "val" finds "validation"
  EXPECT_EQ(val->size(), 1);
  EXPECT_EQ(val->label(0), 2);
  EXPECT_EQ(val->classes(), train->classes());
}

TEST(FolderSource, NumbersThatAreSortedByBytesAreWarnedOf) {
  const auto warnings_of = [](const std::vector<std::string>& classes) {
    const TemporaryFolder temporary("tessera-numbers");
    for (const std::string& name : classes) write_image(temporary.path() / "train" / name / "x.png", 10);
    std::string warnings;
    SourceOptions options;
    options.warn = [&](const std::string& line) { warnings += line; };
    open_source("folder:" + temporary.path().string(), "train", options);
    return warnings;
  };
  EXPECT_EQ(warnings_of({"0", "1", "2", "3", "10", "11"}),
            "[data.open_folder] class folders are sorted by bytes, not by number: folder '10' has label 2 "
            "(where numbers are labels, "
            "pad them with zeros: 000, 001, ...)");
  EXPECT_EQ(warnings_of({"00", "01", "02", "10"}), "");
  EXPECT_EQ(warnings_of({"1", "2", "3"}), "");
  EXPECT_EQ(warnings_of({"1", "10", "2", "cat"}), "");
}

TEST(FolderSource, AnyBytesAreAName) {
  const TemporaryFolder temporary("tessera-data");
  write_image(temporary.path() / "train" / "caf\xe9" / "\xff\xfe.png", 9);
  const auto source = open_source(temporary.path().string(), "train", {});
  ASSERT_EQ(source->size(), 1);
  EXPECT_EQ(source->sample_name(0), "train/caf\xe9/\xff\xfe.png");
  EXPECT_EQ(source->read(0, 1).pixels[0], 9);
}

// Neither may cost time or memory: they are broken samples like others.
TEST(FolderSource, APipeAndAnEndlessFileAreBroken) {
  const TemporaryFolder temporary("tessera-data");
  const fs::path folder = temporary.path() / "train" / "a";
  write_image(folder / "1.png", 9);
  ASSERT_EQ(::mkfifo((folder / "2.png").c_str(), 0600), 0);
  write_text(folder / "3.png", "");
  fs::resize_file(folder / "3.png", uint64_t{20} << 30);  // sparse: takes no room
  const auto source = open_source(temporary.path().string(), "train", {});
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(error_text([&] { source->load(1); }),
            "[file.open] a regular file: " + (folder / "2.png").string() + " is none");
  const std::string too_large = "[data.sample] an image file of at most 1.00 GiB: found 20.00 GiB (" +
                                (folder / "3.png").string() + ")";
  EXPECT_EQ(error_text([&] { source->load(2); }), too_large);
  const TransformOptions options;
  EXPECT_EQ(error_text([&] { load_image_for_eval(folder / "3.png", options); }), too_large);
}

TEST(FolderSource, AnEmptyClassIsNamedAndCounts) {
  const TemporaryFolder temporary("tessera-data");
  const fs::path train = temporary.path() / "train";
  write_image(train / "b" / "1.png", 9);
  fs::create_directories(train / "a");
  std::vector<std::string> warnings;
  SourceOptions options;
  options.warn = [&](const std::string& line) { warnings.push_back(line); };
  const auto source = open_source(temporary.path().string(), "train", options);
  EXPECT_EQ(source->classes().size(), 2U);
  EXPECT_EQ(source->label(0), 1);
  EXPECT_EQ(warnings,
            std::vector<std::string>{"[data.open_folder] images in every class folder: found none in " +
                                     (train / "a").string()});
}

TEST(FolderSource, WhatIsNoImageIsCountedAndToldOnce) {
  const TemporaryFolder temporary("tessera-data");
  const fs::path train = temporary.path() / "train";
  for (const char* name :
       {"a/1.webp", "a/2.webp", "b/list.txt", "b/README", "b/.hidden", "a/x.y/3.png", "__MACOSX/a/1.png"})
    write_text(train / name, "?");
  std::vector<std::string> warnings;
  SourceOptions options;
  options.warn = [&](const std::string& line) { warnings.push_back(line); };
  const std::string left_out = "left out 2 .webp, 1 without an ending, 1 .txt, 1 folder (the first is " +
                               (train / "a/1.webp").string() + ")";
  EXPECT_EQ(
      error_text([&] { open_source(temporary.path().string(), "train", options); }),
      concat("[data.open_folder] images named .jpg, .jpeg or .png in the class folders: found none (in ",
             train.string(), "; ", left_out, ")"));
  write_image(train / "a" / "1.png", 9);
  write_image(train / "b" / "1.JPG", 9);
  EXPECT_EQ(open_source(temporary.path().string(), "train", options)->size(), 2);
  EXPECT_EQ(warnings,
            std::vector<std::string>{
                "[data.open_folder] only images named .jpg, .jpeg or .png in class folders: " + left_out});
}

TEST(FolderSource, ReadErrorsNameTheFile) {
  const TemporaryFolder temporary("tessera-data");
  write_text(temporary.path() / "train" / "a" / "1.jpg", "<html>");
  fs::create_symlink("nowhere", temporary.path() / "train" / "a" / "2.jpg");
  const auto source = open_source(temporary.path().string(), "train", {});
  EXPECT_EQ(error_text([&] { source->read(0, 3); }),
            "[formats.decode_image] a JPEG or PNG image: found a file that starts with the bytes 3c 68 74 6d "
            "(train/a/1.jpg)");
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(error_text([&] { source->read(1, 3); }), "[file.open] cannot open " + temporary.path().string() +
                                                         "/train/a/2.jpg: No such file or directory");
}

TEST(FolderSource, Errors) {
  const TemporaryFolder temporary("tessera-data");
  const fs::path root = temporary.path();
  const std::string spec = "folder:" + root.string();
  fs::create_directories(root / "other");
  EXPECT_EQ(open_error(spec),
            "[data.open_folder] there is no split 'train' in " + root.string() +
                ": expected a folder train, found other; --split, data.train and data.val name the splits");
  EXPECT_EQ(
      open_error(spec, "val"),
      "[data.open_folder] there is no split 'val' in " + root.string() +
          ": expected a folder val or validation or test, found other; --split, data.train and data.val name "
          "the splits");
  EXPECT_EQ(open_error(spec, "othr"),
            "[data.open_folder] there is no split 'othr' in " + root.string() +
                ": expected a folder othr, found other; did you mean other? (--split, "
                "data.train, data.val)");
  write_image(root / "other" / "1.png", 1);
  EXPECT_EQ(
      open_error(spec),
      "[data.open_folder] a folder train that holds the class folders: found class folders at the top (in " +
          root.string() + "; move them to " + root.string() + "/train)");
  write_image(root / "x" / "validation" / "a" / "1.png", 1);
  EXPECT_EQ(
      open_error("folder:" + (root / "x" / "validation" / "").string()),
      "[data.open_folder] a folder train that holds the class folders: found class folders at the top (in " +
          (root / "x" / "validation").string() +
          "; give the folder that holds validation: folder:" + (root / "x").string() + ")");
  fs::remove_all(root / "x");
  fs::create_directories(root / "train");
  EXPECT_EQ(open_error(spec),
            "[data.open_folder] a folder for each class: found none (in " + root.string() + "/train)");
  fs::create_directories(root / "train" / "shirt");
  EXPECT_EQ(open_error(spec),
            "[data.open_folder] images named .jpg, .jpeg or .png in the class folders: found none (in " +
                root.string() + "/train)");
  write_image(root / "train" / "shirt" / "1.png", 1);
  write_image(root / "val" / "shirts" / "1.png", 1);
  EXPECT_EQ(open_error(spec, "val"),
            "[data.open_folder] class 'shirts' is in " + root.string() + "/val but not in " + root.string() +
                "/train: expected the classes of the train split; did you mean 'shirt'?");
  write_image(root / "val" / "daisy" / "1.png", 1);
  EXPECT_EQ(open_error(spec, "val"),
            "[data.open_folder] class 'daisy' is in " + root.string() + "/val but not in " + root.string() +
                "/train: expected the classes of the train split; make the folder " + root.string() +
                "/train/daisy, or remove " + root.string() + "/val/daisy");
}

/// Three images of 2 x 2 with labels 2, 0, 1; one t10k image with label 3.
void write_idx_files(const fs::path& folder) {
  write_text(folder / "train-images-idx3-ubyte", idx_file({3, 2, 2}, "abcdefghijkl"));
  write_text(folder / "train-labels-idx1-ubyte", idx_file({3}, std::string("\2\0\1", 3)));
  write_text(folder / "t10k-images.idx3-ubyte", idx_file({1, 2, 2}, "wxyz"));
  write_text(folder / "t10k-labels.idx1-ubyte", idx_file({1}, "\3"));
}

TEST(IdxSource, ReadsBothParts) {
  const TemporaryFolder temporary("tessera-data");
  write_idx_files(temporary.path());
  const std::string path = temporary.path().string();
  for (const std::string& spec : {"idx:" + path, path}) {
    const auto train = open_source(spec, "train", {});
    ASSERT_EQ(train->size(), 3);
    EXPECT_EQ(train->label(0), 2);
    EXPECT_EQ(train->label(2), 1);
    EXPECT_EQ(train->sample_name(1), "train-images-idx3-ubyte[1]");
    EXPECT_EQ(train->classes(), (std::vector<std::string>{"0", "1", "2", "3"}));
    const Image image = train->read(1, 1);
    EXPECT_EQ(image.width, 2);
    EXPECT_EQ(image.pixels, (std::vector<uint8_t>{'e', 'f', 'g', 'h'}));
    EXPECT_EQ(train->read(1, 3).pixels.size(), 12U);
    for (const std::string split : {"val", "test"}) {
      const auto test = open_source(spec, split, {});
      EXPECT_EQ(test->size(), 1);
      EXPECT_EQ(test->label(0), 3);
      EXPECT_EQ(test->classes(), train->classes());
    }
  }
}

TEST(IdxSource, Errors) {
  const TemporaryFolder temporary("tessera-data");
  const fs::path root = temporary.path();
  const std::string spec = "idx:" + root.string();
  write_text(root / "t10k-images-idx3-ubyte", idx_file({1, 1, 1}, "a"));
  EXPECT_EQ(open_error(spec, "train"),
            "[data.open_idx] a file train-images-idx3-ubyte or the same with .gz: found none (in " +
                root.string() + ")");
  EXPECT_EQ(open_error(spec, "val"),
            "[data.open_idx] a file t10k-labels-idx1-ubyte or the same with .gz: found none (in " +
                root.string() + ")");
  EXPECT_EQ(open_error(spec, "minival"),
            "[data.open_idx] a split of the MNIST family (train, val, test): found 'minival'");
  write_idx_files(root);
  const fs::path labels = root / "train-labels-idx1-ubyte", images = root / "train-images-idx3-ubyte";
  write_text(labels, idx_file({2}, "ab"));
  EXPECT_EQ(open_error(spec),
            "[data.open_idx] as many labels as images: found 2 for 3 (" + labels.string() + ")");
  write_text(labels, idx_file({1, 2}, "ab"));
  EXPECT_EQ(open_error(spec), "[data.open_idx] labels of 1 dimension: found 2 (" + labels.string() + ")");
  write_text(labels, idx_file({3}, "abc"));
  write_text(images, idx_file({3}, "abc"));
  EXPECT_EQ(open_error(spec), "[data.open_idx] images of 3 dimensions (or 4, the last 1 or 3): found 1 (" +
                                  images.string() + ")");
  write_text(images, idx_file({0, 2, 2}, ""));
  write_text(labels, idx_file({0}, ""));
  EXPECT_EQ(open_error(spec), "[data.open_idx] at least one image of at least one pixel: found 0 of 2 x 2 (" +
                                  images.string() + ")");
  write_text(images, "GIF89a");
  EXPECT_EQ(open_error(spec),
            "[formats.parse_idx] an idx file, which starts with two zero bytes: found 71 and 73 (" +
                images.string() + ")");
  write_text(images, idx_file({3, 2, 2}, "abc"));
  EXPECT_EQ(open_error(spec), "[formats.parse_idx] an idx file of 3 x 2 x 2 bytes: found 3 bytes of data (" +
                                  images.string() + "; it is cut off)");
}

TEST(IdxSource, Mnist) {
  TESSERA_SHARED_OR_SKIP(folder, "mnist");
  const auto train = open_source("idx:" + folder.string(), "train", {});
  EXPECT_EQ(train->size(), 60000);
  const std::vector<int64_t> first = {5, 0, 4, 1, 9};  // known to everyone who has looked at MNIST
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(train->label(i), first[static_cast<size_t>(i)]);
  EXPECT_EQ(train->read(0, 1).width, 28);
  EXPECT_EQ(train->classes().size(), 10U);
  EXPECT_EQ(open_source(folder.string(), "val", {})->size(), 10000);
}

TEST(IdxSource, TruncatedGzip) {
  TESSERA_SHARED_OR_SKIP(folder, "mnist");
  const TemporaryFolder temporary("tessera-data");
  const std::string images = read_file(folder / "t10k-images-idx3-ubyte.gz");
  const fs::path cut = temporary.path() / "t10k-images-idx3-ubyte.gz";
  write_text(cut, images.substr(0, images.size() / 2));
  write_text(temporary.path() / "t10k-labels-idx1-ubyte.gz", read_file(folder / "t10k-labels-idx1-ubyte.gz"));
  const std::string error = open_error("idx:" + temporary.path().string(), "val");
  EXPECT_TRUE(error.starts_with("[formats.gunzip] a complete gzip file: the data end after ")) << error;
  EXPECT_TRUE(error.ends_with("unpacked bytes (" + cut.string() + "; it is cut off, fetch it again)"))
      << error;
}

TEST(IdxSource, FashionMnistOfDebian) {
  const fs::path folder = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(folder)) GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  const auto train = open_source("idx:" + folder.string(), "train", {});
  EXPECT_EQ(train->size(), 60000);
  EXPECT_EQ(train->classes()[static_cast<size_t>(train->label(0))], "Ankle boot");
  EXPECT_EQ(open_source("idx:" + folder.string(), "val", {})->size(), 10000);
}

TEST(FolderSource, Clothing) {
  TESSERA_SHARED_OR_SKIP(folder, "clothing160");
  const auto train = open_source("folder:" + folder.string(), "train", {});
  const auto val = open_source("folder:" + folder.string(), "val", {});
  EXPECT_EQ(train->size(), 3068);
  EXPECT_EQ(val->size(), 341);
  EXPECT_EQ(open_source("folder:" + folder.string(), "test", {})->size(), 372);
  EXPECT_EQ(train->classes().size(), 10U);
  EXPECT_EQ(val->classes(), train->classes());
  for (int64_t i = 0; i < val->size(); i += 17) {
    const Image image = val->read(i, 3);
    EXPECT_EQ(std::min(image.width, image.height), 160) << val->sample_name(i);
  }
}

TEST(FakeSource, ClassesCanBeToldApart) {
  SourceOptions options;
  options.fake_image_size = 19;
  options.fake_classes = 5;
  const auto train = open_source("fake:50", "train", options), val = open_source("fake:50", "val", options);
  EXPECT_EQ(train->size(), 50);
  EXPECT_EQ(open_source("fake:", "train", options)->size(), 1280);
  EXPECT_EQ(train->read(7, 3).pixels, train->read(7, 3).pixels);
  EXPECT_NE(train->read(7, 3).pixels, val->read(7, 3).pixels);
  EXPECT_EQ(train->read(7, 1).channels, 1);
  // The nearest training image of every validation image is of its class.
  for (int64_t i = 0; i < 10; ++i) {
    const auto image = val->read(i, 3).pixels;
    int64_t best_label = -1;
    double best = 1e30;
    for (int64_t j = 0; j < 10; ++j) {
      const auto other = train->read(j, 3).pixels;
      double distance = 0;
      for (size_t k = 0; k < image.size(); ++k) distance += std::abs(double{0} + image[k] - other[k]);
      if (distance < best) {
        best = distance;
        best_label = train->label(j);
      }
    }
    EXPECT_EQ(best_label, val->label(i));
  }
  for (const std::string wrong : {"fake:ten", "fake:0", "fake:10000000001", "fake:9000000000000000000"}) {
    EXPECT_EQ(open_error(wrong),
              "[data.open_fake] fake:N with a number of images N from 1 to 10000000000: found " + wrong);
  }
  options.fake_channels = 2;
  EXPECT_EQ(error_text([&] { open_source("fake:8", "train", options); }),
            "[data.open_fake] synthetic images of at least 1 pixel, 1 class and 1 or 3 channels: found 19 "
            "pixels, 5 "
            "classes, 2 channels");
}

}  // namespace
}  // namespace tessera::data
