// SPDX-License-Identifier: Apache-2.0
// zip: and cifar: over files of Python's writers, and what all archives have in common.
#include "tests/data/archives.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <chrono>
#include <functional>

#include "tessera/base/words.h"
#include "tessera/data/class_names.h"
#include "tessera/data/index.h"
#include "tessera/data/loader.h"
#include "tessera/data/say_once.h"
#include "tessera/data/source.h"
#include "tests/data/folder_maker.h"
#include "tests/data/shared_data.h"
#include "tests/data/tar_maker.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;

void append_le(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

/// A zip archive of stored members (PKWARE's APPNOTE 4.3.7, 4.3.12, 4.3.16).
std::string zip(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string out, directory;
  for (const auto& [name, content] : members) {
    const auto crc =
        ::crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size()));
    std::string shared;  // what both headers hold
    for (const uint64_t value : {20, 0, 0, 0, 0}) append_le(shared, value, 2);
    for (const uint64_t value : {uint64_t{crc}, content.size(), content.size()}) append_le(shared, value, 4);
    append_le(shared, name.size(), 2);
    append_le(shared, 0, 2);
    directory += "PK\x01\x02" + std::string("\x14\0", 2) + shared + std::string(10, '\0');
    append_le(directory, out.size(), 4);
    directory += name;
    out += "PK\x03\x04" + shared + name + content;
  }
  const uint64_t start = out.size();
  out += directory + "PK\x05\x06" + std::string(4, '\0');
  append_le(out, members.size(), 2);
  append_le(out, members.size(), 2);
  append_le(out, directory.size(), 4);
  append_le(out, start, 4);
  return out + std::string(2, '\0');
}

TEST_F(Archives, ZippedImageNet) {
  const auto train = open("zip:" + (kFixtures / "zip").string());
  expect_set(*train, 6);
  EXPECT_EQ(train->classes(), (Names{"n00", "n01", "n02"}));
  EXPECT_EQ(train->sample_name(4), "train.zip/n01/4.png");
  const auto val = open("zip:" + (kFixtures / "zip").string(), "val");
  expect_set(*val, 3);
  EXPECT_EQ(val->classes(), train->classes()) << "names from the training map";
  EXPECT_EQ(val->sample_name(2), "val.zip/val_2.png");
  EXPECT_TRUE(warnings.empty());
}

TEST_F(Archives, ZipMapsWithFaults) {
  const fs::path root = copy("zip");
  const std::string map = (root / "train_map.txt").string(), zip = (root / "train.zip").string();
  write_text(map,
             "n00/0.png\t0\nn00/missing.png\t0\nn00/0.png\t1\nn01/1.png\tone\nn02/2.png\nn00/3.png\t-1\n");
  const auto source = open("zip:" + root.string());
  ASSERT_EQ(source->size(), 6);
  EXPECT_EQ(load_error(*source, 0), "no error");
  EXPECT_EQ(load_error(*source, 1),
            "[data.zip] n00/missing.png is not in " + zip + " (line 2 of " + map + ")");
  EXPECT_EQ(load_error(*source, 2), "[data.zip] n00/0.png is listed in line 1 already (line 3 of " + map +
                                        "): expected each member once");
  EXPECT_EQ(load_error(*source, 3), "[data.zip] label 'one' is not a number (n01/1.png in line 4 of " + map +
                                        "): expected 0 to 999999");
  EXPECT_EQ(load_error(*source, 4),
            "[data.zip] label '' is not a number (n02/2.png in line 5 of " + map + "): expected 0 to 999999");
  EXPECT_EQ(load_error(*source, 5),
            "[data.zip] label -1 is out of range (n00/3.png in line 6 of " + map + "): expected 0 to 999999");
  EXPECT_EQ(source->label(1), -1);
  write_text(map, "\n");
  EXPECT_EQ(open_error("zip:" + root.string()),
            concat("[data.open_zip] ", map, " has no lines with a name and a label"));
  write_text(zip, "no zip");
  write_text(map, "a\t1\n");
  EXPECT_EQ(open_error("zip:" + root.string()),
            concat("[formats.zip] bad zip archive ", zip, ": it has no zip directory at its end"));
  fs::remove(zip);
  EXPECT_EQ(open_error("zip:" + root.string()),
            concat("[data.open_zip] ", root.string(), " has val.zip: expected train.zip"));
}

TEST_F(Archives, OfTwoZipMembersOfOneNameTheLaterIsUsed) {
  const fs::path root = copy("zip");
  std::string bytes = read_file(root / "train.zip");
  for (size_t at = bytes.find("n00/3.png"); at != std::string::npos; at = bytes.find("n00/3.png", at))
    bytes[at + 4] = '0';
  write_text(root / "train.zip", bytes);
  const auto source = open("zip:" + root.string());
  EXPECT_EQ(source->read(0, 1).pixels[0], 60);
  EXPECT_EQ(source->label(3), -1);
  const Names expected = {
      "[data.open_zip] " + (root / "train.zip").string() +
      " has 1 member with a repeated name (n00/0.png); the last member of each name is used"};
  EXPECT_EQ(warnings, expected);
  fs::remove(root / "train_map.txt");
  EXPECT_EQ(open("zip:" + root.string())->size(), 5);
  EXPECT_EQ(warnings, expected);
}

TEST_F(Archives, ZipWithoutMapTakesFoldersAsClasses) {
  const fs::path root = copy("zip");
  fs::remove(root / "train_map.txt");
  const auto train = open("zip:" + root.string());
  ASSERT_EQ(train->size(), 6);
  EXPECT_EQ(train->classes(), (Names{"n00", "n01", "n02"}));
  EXPECT_EQ(train->sample_name(1), "train.zip/n00/3.png");
  EXPECT_EQ(train->read(1, 1).pixels[0], 60);
  fs::remove(root / "val_map.txt");
  fs::remove(root / "train.zip");
  EXPECT_EQ(open_error("zip:" + root.string(), "val"),
            concat("[data.open_zip] ", (root / "val.zip").string(),
                   " has no class folders: expected a map val_map.txt beside it"));
}

/// Class folders named by numbers are names: their labels are those of the same tree as folder:, in the order
/// of bytes, with the same warning.
TEST_F(Archives, ZipOfNumericFoldersHasTheLabelsOfFolder) {
  const fs::path root = temporary.path() / "numeric";
  for (const Names& classes :
       {Names{"0", "1", "2", "10", "11"}, Names{"10", "20", "30"}, Names{"1", "10", "2"}}) {
    fs::remove_all(root);
    for (const std::string split : {"train", "val"}) {
      std::vector<std::pair<std::string, std::string>> members;
      for (size_t i = 0; i < classes.size(); ++i) {
        const fs::path image = fs::path(split) / classes[i] / "x.png";
        write_image(root / image, static_cast<uint8_t>(10 * i));
        members.emplace_back(image.string(), read_file(root / image));
      }
      write_text(root / (split + ".zip"), zip(members));
    }
    for (const std::string split : {"train", "val"}) {
      const auto folder = open("folder:" + root.string(), split);
      Names expected = warnings;
      for (std::string& line : expected) replace_all(line, "open_folder", "open_zip");
      const auto zipped = open("zip:" + root.string(), split);
      EXPECT_EQ(warnings, expected);
      EXPECT_EQ(zipped->classes(), folder->classes());
      ASSERT_EQ(zipped->size(), folder->size());
      for (int64_t i = 0; i < folder->size(); ++i) {
        EXPECT_EQ(zipped->label(i), folder->label(i)) << classes[0] << ' ' << i;
        EXPECT_EQ(zipped->read(i, 1).pixels, folder->read(i, 1).pixels) << classes[0] << ' ' << i;
      }
    }
  }
}

/// A file of names decides: a folder is the label itself only where no class is named by a number.
TEST_F(Archives, ZipOfNumericFoldersWithAClassFile) {
  const fs::path root = temporary.path() / "named";
  write_image(root / "x.png", 10);
  const std::string image = read_file(root / "x.png");
  write_text(root / "train.zip", zip({{"0/x.png", image}, {"1/x.png", image}}));
  write_text(root / "classes.txt", "cat\ndog\n");
  const auto by_label = open("zip:" + root.string());
  EXPECT_EQ(by_label->label(0), 0);
  EXPECT_EQ(by_label->label(1), 1);
  write_text(root / "classes.txt", "1\n2\n");
  const auto by_name = open("zip:" + root.string());
  EXPECT_EQ(by_name->label(0), -1);
  EXPECT_EQ(by_name->label(1), 0);
  EXPECT_EQ(load_error(*by_name, 0),
            "[data.zip] label '0' is not the name of a class (the class folder of 0/x.png in " +
                (root / "train.zip").string() + ")");
  write_text(root / "classes.txt", "cat\n");
  EXPECT_EQ(load_error(*open("zip:" + root.string()), 1),
            "[data.zip] label 1 is out of range (the class folder of 1/x.png in " +
                (root / "train.zip").string() + "): expected 0 to 0");
}

/// Without a map of its own the validation split has the labels that the training map gives to its folders.
TEST_F(Archives, ZipWithoutMapHasTheLabelsOfTheTrainingMap) {
  const fs::path root = temporary.path() / "halfmapped";
  write_image(root / "x.png", 10);
  const std::string image = read_file(root / "x.png");
  for (const std::string split : {"train", "val"})
    write_text(root / (split + ".zip"), zip({{"cat/x.png", image}, {"dog/x.png", image}}));
  write_text(root / "train_map.txt", "cat/x.png\t1\ndog/x.png\t0\n");
  const auto val = open("zip:" + root.string(), "val");
  EXPECT_EQ(val->classes(), (Names{"dog", "cat"}));
  EXPECT_EQ(val->label(0), 1);
  EXPECT_EQ(val->label(1), 0);
  write_text(root / "train_map.txt", "cat/x.png\t1\n");
  EXPECT_EQ(
      open_error("zip:" + root.string(), "val"),
      "[data.open_zip] " + (root / "val.zip").string() + " has no map, and " +
          (root / "train_map.txt").string() +
          " does not give each class folder one label of its own: expected a map val_map.txt beside it; "
          "write the map, or name the classes by data.classes");
}

/// Packed from folders 0, 1, 2, 10: the names that classes.txt or a map gives are in the order of bytes.
TEST_F(Archives, NumericClassNamesInByteOrderAreWarnedOf) {
  const std::string problem =
      "class names are sorted by bytes, not by number: class '10' has label 2 (where numbers are labels, pad "
      "them with zeros: 000, 001, ...)";
  const std::string names = "0\n1\n10\n2\n";
  for (const std::string kind : {"zip", "wds", "tfrecord"}) {
    const fs::path root = copy(kind);
    write_text(root / "classes.txt", names);
    options.label_offset = kind == "tfrecord" ? -1 : 0;
    open(kind + ":" + root.string());
    EXPECT_EQ(warnings, Names{"[data.open_" + kind + "] " + problem});
    write_text(root / "classes.txt", "2\n0\n1\n10\n");
    open(kind + ":" + root.string());
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_TRUE(warnings[0].find("class names are not in numeric order: class '2' has label 0") !=
                std::string::npos)
        << warnings[0];
    write_text(root / "classes.txt", "0\n1\n2\n10\n");
    open(kind + ":" + root.string());
    EXPECT_TRUE(warnings.empty());
  }
  options.label_offset = 0;
  const fs::path root = temporary.path() / "mapped";
  write_image(root / "x.png", 10);
  const std::string image = read_file(root / "x.png");
  write_text(root / "train.zip", zip({{"0/x.png", image}, {"10/x.png", image}, {"2/x.png", image}}));
  write_text(root / "train_map.txt", "0/x.png\t0\n10/x.png\t1\n2/x.png\t2\n");
  open("zip:" + root.string());
  EXPECT_EQ(warnings, Names{"[data.open_zip] class names are sorted by bytes, not by number: class '10' has "
                            "label 1 (where numbers are labels, pad them with zeros: 000, 001, ...)"});
}

/// The text of a JSON string or a bytes feature is a name where a class is called so; a number is a label.
TEST(LabelReader, ANumberIsALabelAndTextIsANameFirst) {
  const LabelReader labels({"0", "1", "10", "2"}, 0);
  std::string problem;
  EXPECT_EQ(labels.read("2", problem), 2);
  EXPECT_EQ(labels.read_name("2", problem), 3);
  EXPECT_EQ(labels.read_name(" 10 ", problem), 2);
  EXPECT_EQ(labels.read_name("3", problem), std::nullopt);
  EXPECT_EQ(problem, "label '3' is not the name of a class");
  const LabelReader words({"cat", "dog"}, 0), none({}, -1);
  EXPECT_EQ(words.read_name("dog", problem), 1);
  EXPECT_EQ(words.read_name("0", problem), 0);
  EXPECT_EQ(none.read_name("1", problem), 0);
}

/// What Finder adds when it packs a folder, and what a map or the endings leave out. The reference is what
/// the same files are as folders: folder: skips hidden files and names the rest.
TEST_F(Archives, ZipSkipsWhatArchiversAddAndNamesWhatIsLeftOut) {
  const fs::path root = temporary.path() / "finder";
  write_image(root / "1.png", 9);
  const std::string image = read_file(root / "1.png");
  const std::string archive = (root / "train.zip").string();
  write_text(archive, zip({{"cat/1.png", image},
                           {"cat/._1.png", "x"},
                           {"__MACOSX/cat/._1.png", "x"},
                           {"__MACOSX/cat/2.png", "x"},
                           {"cat/.DS_Store", "x"},
                           {"dog/2.png", image},
                           {"dog/3.webp", "x"},
                           {"LICENSE", "x"}}));
  const auto by_folders = open("zip:" + root.string());
  EXPECT_EQ(by_folders->size(), 2);
  EXPECT_EQ(by_folders->classes(), (Names{"cat", "dog"}));
  EXPECT_EQ(warnings, Names{"[data.open_zip] only images named .jpg, .jpeg or .png of " + archive +
                            ": left out 1 without an ending, 1 .webp (the first is dog/3.webp)"});
  write_text(root / "train_map.txt", "cat/1.png\t0\n");
  EXPECT_EQ(open("zip:" + root.string())->size(), 1);
  EXPECT_EQ(warnings, Names{"[data.open_zip] 1 image of " + archive +
                            " is not in train_map.txt: left out 1 .png (the first is dog/2.png)"});
}

TEST_F(Archives, ClassFileAndLabelOffset) {
  const fs::path root = copy("zip");
  write_text(root / "classes.txt", "cat\ndog\r\nfish\n");
  EXPECT_EQ(open("zip:" + root.string())->classes(), (Names{"cat", "dog", "fish"}));
  write_text(root / "names", "none\ncat\ndog\nfish");
  options.classes = (root / "names").string();
  options.label_offset = 1;
  const auto source = open("zip:" + root.string());
  EXPECT_EQ(source->label(0), 1);
  EXPECT_EQ(source->classes()[1], "cat");
  write_text(root / "names", "cat\ncat");
  EXPECT_EQ(open_error("zip:" + root.string()),
            concat("[data.classes] ", (root / "names").string(),
                   " has the class name 'cat' twice: expected each name once"));
  write_text(root / "names", " \n");
  EXPECT_EQ(open_error("zip:" + root.string()),
            concat("[data.classes] ", (root / "names").string(),
                   " has no class names: expected one class name per line"));
}

TEST_F(Archives, SettingsOfOtherKindsAreNamed) {
  const fs::path root = temporary.path() / "set";
  write_image(root / "train" / "a" / "1.png", 1);
  const std::string kinds[] = {"folder:" + root.string(), root.string(),
                               "cifar:" + (kFixtures / "cifar" / "cifar-10-binary.tar.gz").string(),
                               "fake:8"};
  for (const auto& spec : kinds) {
    options.image_key = options.classes = "";
    options.label_offset = 0;
    open(spec);
    EXPECT_TRUE(warnings.empty()) << spec;
    options.image_key = "jpg";
    open(spec);
    ASSERT_EQ(warnings.size(), 1U) << spec;
    EXPECT_TRUE(warnings[0].starts_with("[data.open_source] data.image_key has no effect with "))
        << warnings[0];
    EXPECT_TRUE(warnings[0].ends_with(": sources; remove it")) << warnings[0];
    options.classes = "/none";
    options.label_offset = -5;
    open(spec);
    ASSERT_EQ(warnings.size(), 1U) << spec;
    EXPECT_TRUE(warnings[0].starts_with(
        "[data.open_source] data.image_key, data.label_offset, data.classes have no effect with "))
        << warnings[0];
    EXPECT_TRUE(warnings[0].ends_with(": sources; remove them")) << warnings[0];
  }
  options.classes = "";
  options.label_offset = 0;
  open("zip:" + (kFixtures / "zip").string());
  EXPECT_EQ(warnings, Names{"[data.open_source] data.image_key has no effect with zip: sources; remove it"});
}

TEST_F(Archives, FilesThatShrinkWhileTheyAreReadAreNamed) {
  const fs::path wds = copy("wds"), records = copy("tfrecord"), zip = copy("zip");
  const auto shards = open("wds:" + wds.string());
  const auto examples = open("tfrecord:" + records.string());
  const auto members = open("zip:" + zip.string());
  for (const fs::path& file :
       {wds / "set-train-000000.tar", records / "train-00000-of-00002", zip / "train.zip"}) {
    fs::resize_file(file, 10);
  }
  EXPECT_EQ(load_error(*shards, 0), concat("[data.shards] ", (wds / "set-train-000000.tar").string(),
                                           " became shorter since it was indexed"));
  EXPECT_EQ(load_error(*examples, 0), concat("[data.shards] ", (records / "train-00000-of-00002").string(),
                                             " became shorter since it was indexed"));
  EXPECT_TRUE(load_error(*members, 0).find("train.zip is cut off: it has ") != std::string::npos)
      << load_error(*members, 0);
}

TEST_F(Archives, BrokenSamplesAreSkippedCountedAndNamedByTheLoader) {
  const fs::path root = copy("zip");
  write_text(root / "train_map.txt", "n00/0.png\t0\nn01/1.png\t1\nn02/none.png\t2\nn00/3.png\t0\n");
  const auto source = open("zip:" + root.string());
  TransformOptions transform;
  transform.image_size = 8;
  LoaderOptions loader;
  loader.batch = 4;
  loader.workers = 0;
  loader.error_limit = 0.5;
  Names named;
  loader.warn = [&](const std::string& line) { named.push_back(line); };
  TrainLoader skips(*source, transform, loader, 0);
  for (int step = 0; step < 3; ++step) {
    for (const int64_t label : skips.next().labels) EXPECT_GE(label, 0);
  }
  EXPECT_EQ(skips.broken_samples(), 1);
  ASSERT_EQ(named.size(), 1U);
  EXPECT_NE(named[0].find("[data.zip] n02/none.png is not in "), std::string::npos) << named[0];
  loader.fail_on_error = true;
  TrainLoader stops(*source, transform, loader, 0);
  EXPECT_NE(error_text([&] { stops.next(); }).find("line 3 of "), std::string::npos);
}

TEST_F(Archives, IndexesAreMadeAnewWhenAnythingTheyCameFromChanges) {
  const fs::path wds = copy("wds"), zip = copy("zip"), tfds = copy("tfds") / "tiny" / "1.2.0";
  const fs::path tfds_names = tfds / "label.labels.txt";
  write_text(wds / "classes.txt", "cat\ndog\nfish\n");
  const auto same_again = [](const fs::path& file) {  // other bytes of the same number
    std::string text = read_file(file);
    text[text.find("cat")] = 'r';
    write_text(file, text);
  };
  const auto appended = [](const char* text) {
    return [text](const fs::path& file) { write_text(file, read_file(file) + text); };
  };
  const struct {
    std::string spec;
    fs::path file;
    std::function<void(const fs::path&)> change;
  } kCases[] = {
      {"wds:" + wds.string(), wds / "set-train-000000.tar", appended("0123")},
      {"wds:" + wds.string(), wds / "classes.txt", same_again},
      {"zip:" + zip.string(), zip / "train_map.txt", appended("n00/none.png\t0\n")},
      {"zip:" + zip.string(), zip / "train.zip",
       [](const fs::path& file) {
         fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(1));
       }},
      {"tfrecord:" + tfds.string(), tfds / "dataset_info.json", appended(" ")},
      {"tfrecord:" + tfds.string(), tfds_names, same_again},
  };
  const std::string place = (temporary.path() / "indexes").string();
  for (const auto& c : kCases) {
    make_index(c.spec, "train", place, options);
    EXPECT_FALSE(make_index(c.spec, "train", place, options).made) << c.file;
    c.change(c.file);
    EXPECT_TRUE(make_index(c.spec, "train", place, options).made) << c.file;
    EXPECT_FALSE(make_index(c.spec, "train", place, options).made) << c.file;
  }
  options.index_dir = place;
  EXPECT_EQ(open("wds:" + wds.string())->classes()[0], "rat");
  EXPECT_EQ(open("tfrecord:" + tfds.string())->classes()[0], "rat");
  EXPECT_EQ(open("zip:" + zip.string())->size(), 7);
}

TEST_F(Archives, EvaluationsOfOneRunNameABrokenSampleOnce) {
  const fs::path root = copy("zip");
  write_text(root / "val_map.txt", "none.png\t0\n" + read_file(root / "val_map.txt"));
  const auto source = open("zip:" + root.string(), "val");
  TransformOptions transform;
  transform.image_size = 8;
  LoaderOptions loader;
  loader.batch = 2;
  loader.workers = 2;
  loader.error_limit = 0.5;
  Names named;
  loader.warn = say_once([&](const std::string& line) { named.push_back(line); });
  for (int evaluation = 0; evaluation < 3; ++evaluation) {
    EvalLoader batches(*source, transform, loader);
    for (Batch batch; batches.next(&batch);) continue;
    EXPECT_EQ(batches.broken_samples(), 1) << "counted every time";
  }
  ASSERT_EQ(named.size(), 1U);
  EXPECT_NE(named[0].find("[data.zip] none.png is not in "), std::string::npos) << named[0];
  loader.warn("another");
  EXPECT_EQ(named.size(), 2U);
}

TEST_F(Archives, Cifar) {
  for (const std::string path : {"cifar", "cifar/cifar-10-binary.tar.gz"}) {
    const fs::path root = path == "cifar" ? copy("cifar") : kFixtures / path;
    if (path == "cifar") fs::remove_all(root / "cifar-100-binary");
    const auto train = open("cifar:" + root.string());
    ASSERT_EQ(train->size(), 10);
    EXPECT_EQ(train->label(2), 2);
    EXPECT_EQ(train->label(3), 9);
    EXPECT_EQ(train->classes()[9], "truck");
    EXPECT_EQ(train->sample_name(3), "data_batch_2.bin[1]");
    const Image image = train->read(2, 3);
    EXPECT_EQ(image.width, 32);
    EXPECT_EQ((std::vector<uint8_t>(image.pixels.begin(), image.pixels.begin() + 4)),
              (std::vector<uint8_t>{20, 21, 22, 20}));
    const auto val = open("cifar:" + root.string(), "val");
    ASSERT_EQ(val->size(), 1);
    EXPECT_EQ(val->label(0), 7);
  }
  const auto hundred = open("cifar:" + (kFixtures / "cifar").string(), "test");
  ASSERT_EQ(hundred->size(), 2);
  EXPECT_EQ(hundred->label(0), 99) << "the fine label";
  EXPECT_EQ(hundred->classes().size(), 100U);
}

TEST_F(Archives, CifarErrors) {
  const fs::path root = copy("cifar") / "cifar-100-binary";
  const std::string spec = "cifar:" + root.string();
  fs::resize_file(root / "train.bin", 3073);
  EXPECT_EQ(open_error(spec), concat("[data.open_cifar] train.bin in ", root.string(),
                                     " is cut off: it has 3073 bytes: expected records of 3074 bytes"));
  write_text(root / "train.bin", std::string(3074, '\x64'));
  EXPECT_EQ(open_error(spec), concat("[data.open_cifar] train.bin in ", root.string(),
                                     " has the label 100 in record 0: expected labels below 100"));
  fs::remove(root / "train.bin");
  EXPECT_EQ(open_error(spec),
            concat("[data.open_cifar] ", root.string(), " has no file train.bin of CIFAR-100"));
  fs::remove(root / "test.bin");
  EXPECT_EQ(open_error(spec), concat("[data.open_cifar] ", root.string(),
                                     " is not CIFAR: it has no .bin file: expected data_batch_1.bin "
                                     "(CIFAR-10) or train.bin (CIFAR-100)"));
  write_text(root / "notes", "x");
  EXPECT_NE(open_error(spec).find("is not CIFAR: it has no .bin file, but notes: expected "),
            std::string::npos)
      << open_error(spec);
  write_text(root / "cifar-10-python.tar.gz", "x");
  EXPECT_NE(
      open_error(spec).find("is not CIFAR: it has no .bin file, but cifar-10-python.tar.gz (cifar:" +
                            (root / "cifar-10-python.tar.gz").string() + " opens an archive): expected "),
      std::string::npos)
      << open_error(spec);
  EXPECT_EQ(open_error(spec, "odd"),
            "[data.open_cifar] CIFAR has no split 'odd': expected train, val or test");
  EXPECT_EQ(open_error("cifar:/none"),
            "[data.open_cifar] /none does not exist: expected a folder or an archive");
}

}  // namespace
}  // namespace tessera::data
