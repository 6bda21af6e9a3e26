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
  EXPECT_EQ(open_error(""), "[data.open_source] data.source is empty: expected a source such as folder:PATH");
  EXPECT_EQ(open_error("fodler:x"),
            "[data.open_source] data source fodler:x has the unknown kind 'fodler': expected one of folder, "
            "zip, wds, tfrecord, idx, cifar, fake; did you mean folder:x?");
  EXPECT_EQ(open_error("s3:bucket"),
            "[data.open_source] data source s3:bucket has the unknown kind 's3': expected one of folder, "
            "zip, wds, tfrecord, idx, cifar, fake");
  EXPECT_EQ(open_error("idx:"), "[data.open_source] data source idx: has no path: expected idx:PATH");
  for (const std::string kind : {"idx:", "folder:", ""}) {
    EXPECT_EQ(open_error(kind + root + "/none"),
              concat("[data.open_source] ", root, "/none does not exist: expected a folder of data"));
    EXPECT_EQ(open_error(kind + root),
              concat("[data.open_source] ", root, " is empty: expected a folder of data"));
  }
  write_text(temporary.path() / "file", "x");
  EXPECT_EQ(open_error(root + "/file"),
            concat("[data.open_source] ", root, "/file is a file: expected a folder of data"));
  EXPECT_EQ(error_text([&] { open_source(root + "/none", "train", {.key = "data.source"}); }),
            concat("[data.open_source] ", root,
                   "/none does not exist: expected a folder of data; data.source names it; set another: "
                   "--set data.source=folder:PATH"));
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
            concat("[file.open] ", (folder / "2.png").string(), " is not a regular file"));
  const std::string too_large = concat("[data.sample] ", (folder / "3.png").string(),
                                       " has 20.00 GiB: expected an image file of at most 1.00 GiB");
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
  EXPECT_EQ(warnings, std::vector<std::string>{"[data.open_folder] class folder " + (train / "a").string() +
                                               " has no images"});
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
  EXPECT_EQ(error_text([&] { open_source(temporary.path().string(), "train", options); }),
            concat("[data.open_folder] the class folders in ", train.string(), " have no images: ", left_out,
                   ": expected files named .jpg, .jpeg or .png"));
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
  EXPECT_EQ(
      error_text([&] { source->read(0, 3); }),
      "[formats.decode_image] train/a/1.jpg starts with the bytes 3c 68 74 6d: expected a JPEG or PNG image");
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
  EXPECT_EQ(open_error(spec), concat("[data.open_folder] ", root.string(),
                                     " has class folders at the top: expected a folder train that holds the "
                                     "class folders; move them to ",
                                     root.string(), "/train"));
  write_image(root / "x" / "validation" / "a" / "1.png", 1);
  EXPECT_EQ(open_error("folder:" + (root / "x" / "validation" / "").string()),
            concat("[data.open_folder] ", (root / "x" / "validation").string(),
                   " has class folders at the top: expected a folder train that holds the class folders; "
                   "give the folder that holds validation: folder:",
                   (root / "x").string()));
  fs::remove_all(root / "x");
  fs::create_directories(root / "train");
  EXPECT_EQ(open_error(spec), concat("[data.open_folder] ", root.string(),
                                     "/train has no folders: expected a folder for each class"));
  fs::create_directories(root / "train" / "shirt");
  EXPECT_EQ(open_error(spec), concat("[data.open_folder] the class folders in ", root.string(),
                                     "/train have no images: expected files named .jpg, .jpeg or .png"));
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
  EXPECT_EQ(open_error(spec, "train"), concat("[data.open_idx] ", root.string(),
                                              " has no file train-images-idx3-ubyte and none with .gz"));
  EXPECT_EQ(open_error(spec, "val"), concat("[data.open_idx] ", root.string(),
                                            " has no file t10k-labels-idx1-ubyte and none with .gz"));
  EXPECT_EQ(open_error(spec, "minival"),
            "[data.open_idx] the MNIST family has no split 'minival': expected train, val or test");
  write_idx_files(root);
  const fs::path labels = root / "train-labels-idx1-ubyte", images = root / "train-images-idx3-ubyte";
  write_text(labels, idx_file({2}, "ab"));
  EXPECT_EQ(open_error(spec), concat("[data.open_idx] ", labels.string(), " has 2 labels for 3 images"));
  write_text(labels, idx_file({1, 2}, "ab"));
  EXPECT_EQ(open_error(spec),
            concat("[data.open_idx] ", labels.string(), " has labels of 2 dimensions: expected 1 dimension"));
  write_text(labels, idx_file({3}, "abc"));
  write_text(images, idx_file({3}, "abc"));
  EXPECT_EQ(open_error(spec),
            concat("[data.open_idx] ", images.string(),
                   " has images of 1 dimensions: expected 3 dimensions, or 4 with a last one of 1 or 3"));
  write_text(images, idx_file({0, 2, 2}, ""));
  write_text(labels, idx_file({0}, ""));
  EXPECT_EQ(open_error(spec),
            concat("[data.open_idx] ", images.string(),
                   " has 0 images of 2 x 2 pixels: expected at least one image of at least one pixel"));
  write_text(images, "GIF89a");
  EXPECT_EQ(open_error(spec),
            concat("[formats.parse_idx] ", images.string(),
                   " is not an idx file: it starts with the bytes 71 and 73: expected two zero bytes"));
  write_text(images, idx_file({3, 2, 2}, "abc"));
  EXPECT_EQ(open_error(spec), concat("[formats.parse_idx] ", images.string(),
                                     " is cut off: it has 3 bytes of data: expected 3 x 2 x 2 bytes"));
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
  EXPECT_TRUE(error.starts_with("[formats.gunzip] " + cut.string() + " is cut off: its data end after "))
      << error;
  EXPECT_TRUE(error.ends_with(" unpacked bytes; fetch it again")) << error;
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
    EXPECT_EQ(open_error(wrong), concat("[data.open_fake] data.source is ", wrong,
                                        ": expected fake:N with a number of images N from 1 to 10000000000"));
  }
  options.fake_channels = 2;
  EXPECT_EQ(error_text([&] { open_source("fake:8", "train", options); }),
            "[data.open_fake] synthetic images have 19 pixels, 5 classes and 2 channels: expected at least 1 "
            "pixel, 1 class and 1 or 3 channels");
}

}  // namespace
}  // namespace tessera::data
