// SPDX-License-Identifier: Apache-2.0
// wds: and tfrecord: over files of Python's writers, and over damaged ones.
#include <gtest/gtest.h>
#include <zlib.h>

#include "tessera/data/loader.h"
#include "tessera/data/source.h"
#include "tests/data/archives.h"
#include "tests/data/folder_maker.h"
#include "tests/data/shared_data.h"
#include "tests/data/tar_maker.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;

TEST_F(Archives, WebDataset) {
  for (const std::string list : {"", "/*.tar", "/set-train-{000000..000001}.tar"}) {
    const auto train = open("wds:" + (kFixtures / "wds").string() + list);
    expect_set(*train, 6);
    EXPECT_EQ(train->classes(), (Names{"0", "1", "2"}));
    EXPECT_EQ(train->sample_name(3), "set-train-000001.tar/0003.png");
    EXPECT_EQ(train->shard_starts(), (std::vector<int64_t>{0, 3}));
    EXPECT_TRUE(warnings.empty());
  }
}

TEST_F(Archives, WebDatasetPackedWithJsonLabels) {
  const auto val = open("wds:" + (kFixtures / "wds").string(), "val");
  expect_set(*val, 4);
  EXPECT_EQ(val->sample_name(1), "set-val-000000.tar.gz/n1/0001.png");
  options.label_key = "json:text";
  const auto texts = open("wds:" + (kFixtures / "wds").string(), "val");
  EXPECT_EQ(load_error(*texts, 0), "[data.wds] label 'x' is not a number (sample n0/0000 of " +
                                       (kFixtures / "wds" / "set-val-000000.tar.gz").string() +
                                       "): expected 0 to 999999");
  options.label_key = "json:no.such";
  EXPECT_EQ(load_error(*open("wds:" + (kFixtures / "wds").string(), "val"), 0),
            "[data.wds] the JSON member has no field 'no.such' (sample n0/0000 of " +
                (kFixtures / "wds" / "set-val-000000.tar.gz").string() +
                "): expected the label in this field");
}

TEST_F(Archives, PackedShardsThroughAnIndexFile) {
  options.index_dir = (temporary.path() / "indexes").string();
  for (int start = 0; start < 2; ++start) expect_set(*open("wds:" + (kFixtures / "wds").string(), "val"), 4);
}

TEST_F(Archives, DaliIndexes) {
  const fs::path root = copy("wds"), indexes = copy("wds_index");
  options.index_dir = indexes.string();
  expect_set(*open("wds:" + root.string()), 6);
  EXPECT_TRUE(warnings.empty());
  // Proof that it is looked at: without the second sample it lists.
  const std::string first = read_file(indexes / "idx_0.txt");
  const size_t line = first.find('\n', first.find('\n') + 1) + 1;
  write_text(indexes / "idx_0.txt",
             "v1.2 2" + first.substr(6, line - 6) + first.substr(first.find('\n', line) + 1));
  EXPECT_EQ(open("wds:" + root.string())->size(), 5);
  // One that does not fit is named, and the archive is read.
  write_text(indexes / "idx_0.txt", read_file(indexes / "idx_1.txt"));
  expect_set(*open("wds:" + root.string()), 6);
  const std::string shard = (root / "set-train-000000.tar").string();
  EXPECT_EQ(warnings,
            Names{"[data.wds] DALI index " + (indexes / "idx_0.txt").string() + " does not fit " + shard +
                  " ([data.wds] the header of 0003.cls is not before byte 1536); the archive itself "
                  "is read"});
  fs::remove_all(indexes);
  write_text(root / "set-train-000000.idx", first);
  options.index_dir = "none";
  expect_set(*open("wds:" + root.string()), 6);
}

TEST_F(Archives, TarCutMidFile) {
  const fs::path root = copy("wds");
  const std::string shard = (root / "set-train-000000.tar").string();
  fs::resize_file(shard, 3584 + 20);  // within the first image
  const auto source = open("wds:" + root.string());
  ASSERT_EQ(source->size(), 4);
  EXPECT_EQ(
      load_error(*source, 0),
      concat("[formats.tar] the archive is cut off within 0000.png: 49 bytes are missing (byte 3604 of ",
             shard, ")"));
  EXPECT_EQ(source->label(0), -1);
  EXPECT_EQ(source->label(1), 0);
  fs::resize_file(shard, 100);  // nothing of it is left
  EXPECT_EQ(load_error(*open("wds:" + root.string()), 0),
            concat("[formats.tar] the archive is cut off: its last header has 100 bytes (byte 0 of ", shard,
                   "): expected 512 bytes"));
  fs::resize_file(shard, 0);
  EXPECT_EQ(open("wds:" + root.string())->size(), 3);
  EXPECT_EQ(warnings, Names{"[data.wds] " + shard + " has no end mark; the archive may be cut off"});
  fs::remove(shard);
  fs::create_directory(shard);
  const auto unreadable = open("wds:" + (root / "set-train-{000000..000001}.tar").string());
  ASSERT_EQ(unreadable->size(), 4);
  EXPECT_EQ(load_error(*unreadable, 0), concat("[file.open] ", shard, " is not a regular file"));
}

/// A tar file of these members.
std::string tar(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string all;
  for (const auto& [name, content] : members) all += tar_member(name, content);
  return all + std::string(1024, '\0');
}

/// The bytes as a gzip file whose data are stored, not packed: a flipped byte shows in the CRC alone.
std::string stored_gzip(const std::string& bytes) {
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  constexpr size_t kMost = 65535;
  for (size_t at = 0; at < bytes.size(); at += kMost) {
    const size_t size = std::min(kMost, bytes.size() - at);
    const bool last = at + size == bytes.size();
    out += static_cast<char>(last ? 1 : 0);
    for (const size_t number : {size, ~size}) {
      out += static_cast<char>(number & 0xFF);
      out += static_cast<char>(number >> 8 & 0xFF);
    }
    out += bytes.substr(at, size);
  }
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  for (const uint64_t number : {uint64_t{crc}, uint64_t{bytes.size()}}) {
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(number >> shift & 0xFF);
  }
  return out;
}

TEST_F(Archives, TheCrcOfAPackedShardIsChecked) {
  const std::string image = read_file(kFixtures / "wds" / "set-train-000000.tar").substr(3584, 69);
  const std::string sound = stored_gzip(
      tar({{"0.cls", "0"}, {"0.png", image}, {"1.cls", "1"}, {"1.png", image}}) + std::string(70'000, '\0'));
  const fs::path shard = temporary.path() / "x.tar.gz";
  write_text(shard, sound);
  EXPECT_EQ(open("wds:" + shard.string())->size(), 2);
  std::string flipped = sound, zeroed = sound;
  flipped[sound.find(image) + 40] ^= 1;
  zeroed.replace(sound.size() - 8, 4, std::string(4, '\0'));
  for (const auto& damaged : {flipped, zeroed}) {
    write_text(shard, damaged);
    const auto source = open("wds:" + shard.string());
    ASSERT_EQ(source->size(), 3);
    EXPECT_EQ(load_error(*source, 1), "no error") << "what was found stays";
    EXPECT_EQ(load_error(*source, 2), concat("[formats.gzip] ", shard.string(), " is damaged after ",
                                             70'000 + 4 * 512 + 4 * 512 + 1024,
                                             " unpacked bytes: incorrect data check; fetch it again"));
  }
}

TEST_F(Archives, WebDatasetSamplesWithFaults) {
  const std::string image = read_file(kFixtures / "wds" / "set-train-000000.tar").substr(3584, 69);
  const fs::path shard = temporary.path() / "x.tar";
  write_text(shard, tar({{"README", "x"},
                         {"._1.png", "hidden"},
                         {"1.png", image},
                         {"1.cls", "2"},
                         {"2.png", image},
                         {"3.cls", "1"},
                         {"4.JPG", image},
                         {"4.cls", "many"},
                         {"5.png", image},
                         {"5.png", image},
                         {"5.cls", "1"},
                         {"1.png", image},
                         {"1.cls", "2"},
                         {"\xff\xfe.png", image},
                         {"\xff\xfe.cls", " 1 \n"},
                         {"6.txt", "x"}}));
  const auto source = open("wds:" + shard.string());
  const std::string of = " of " + shard.string() + ")";
  ASSERT_EQ(source->size(), 7);
  EXPECT_EQ(load_error(*source, 0), "no error");
  EXPECT_EQ(load_error(*source, 1),
            "[data.wds] the sample has no label (sample 2" + of + ": expected a member .cls or .json");
  EXPECT_EQ(load_error(*source, 2),
            "[data.wds] the sample has no image (sample 3" + of + ": expected a member .jpg, .jpeg or .png");
  EXPECT_EQ(load_error(*source, 3),
            "[data.wds] label 'many' is not a number (sample 4" + of + ": expected 0 to 999999");
  EXPECT_EQ(load_error(*source, 4),
            "[data.wds] member 5.png occurs twice (sample 5" + of + ": expected each member once");
  EXPECT_EQ(load_error(*source, 5),
            "[data.wds] key 1 occurs twice (sample 1" + of + ": expected each key once");
  EXPECT_EQ(source->label(6), 1);
  EXPECT_EQ(source->sample_name(6), "x.tar/\xff\xfe.png");
  EXPECT_EQ(source->read(6, 1).pixels.size(), 64U);
  options.image_key = "txt";
  EXPECT_EQ(open("wds:" + shard.string())->sample_name(6), "x.tar/6.txt");
  write_text(shard, tar({{"README", "x"}}));
  EXPECT_EQ(open_error("wds:" + shard.string()),
            concat("[data.open_wds] 1 shards have no samples, the first is ", shard.string(),
                   " (1 member belongs to no sample: left out 1 without an ending (the first is README of "
                   "x.tar); the first dot of a file's name ends the name of its sample, and its members are "
                   ".txt and .cls or .json)"));
}

/// As the webdataset library reads them: the first dot ends the key, so a file "1_v1.5.jpg" is member "5.jpg"
/// of sample "1_v1" (webdataset#237).
TEST_F(Archives, WebDatasetMembersThatAreLeftOutAreCountedAndNamed) {
  const std::string image = read_file(kFixtures / "wds" / "set-train-000000.tar").substr(3584, 69);
  const fs::path folder = temporary.path() / "dotted";
  write_text(folder / "a.tar", tar({{"1.png", image},
                                    {"1.cls", "2"},
                                    {"1.txt", "a caption, which is no loss"},
                                    {"1.seg.png", image},
                                    {"1.seg.json", "{}"},
                                    {"1.fine.cls", "7"},
                                    {"1_v1.5.png", image},
                                    {"1_v1.5.cls", "2"},
                                    {"__MACOSX/._1.png", "x"},
                                    {"__MACOSX/1.png", "x"},
                                    {".DS_Store", "x"}}));
  write_text(folder / "b.tar", tar({{"2.png", image},
                                    {"2.cls", "1"},
                                    {"2.0.png", image},
                                    {"2.0.cls", "1"},
                                    {"3.jpg", image},
                                    {"3.png", image},
                                    {"3.cls", "0"},
                                    {"LICENSE", "x"}}));
  const std::string expected =
      "[data.open_wds] 6 members belong to no sample: left out 3 .png, 2 .cls, 1 without an ending (the "
      "first "
      "is 1_v1.5.png of a.tar); the first dot of a file's name ends the name of its sample, and its members "
      "are .jpg, .jpeg or .png and .cls or .json";
  options.index_dir = (temporary.path() / "indexes").string();
  for (int start = 0; start < 2; ++start) {  // the second one uses the index
    EXPECT_EQ(open("wds:" + folder.string())->size(), 3);
    EXPECT_EQ(warnings, Names{expected}) << start;
  }
  options.index_dir = "none";
  options.image_key = "png";
  options.label_key = "cls";
  open("wds:" + (folder / "b.tar").string());
  EXPECT_EQ(warnings,
            (Names{"[data.open_wds] 1 member belongs to no sample: left out 1 without an ending (the "
                   "first is LICENSE of b.tar); the first dot of a file's name ends the name of its "
                   "sample, and its members are .png and .cls"}))
      << "endings that the settings name are all that is wanted of a sample";
}

TEST_F(Archives, TfRecords) {
  options.label_offset = -1;
  const auto train = open("tfrecord:" + (kFixtures / "tfrecord").string());
  expect_set(*train, 4);
  EXPECT_EQ(train->sample_name(2), "train-00001-of-00002[0]");
  EXPECT_EQ(train->classes(), (Names{"0", "1", "2"}));
  options.label_offset = 0;
  const auto packed = open("tfrecord:" + (kFixtures / "tfrecord").string(), "val");
  expect_set(*packed, 3);
  EXPECT_EQ(packed->sample_name(1), "validation.tfrecord.gz[1]");
  options.image_key = "picture";
  const std::string file = (kFixtures / "tfrecord" / "validation.tfrecord.gz").string();
  EXPECT_EQ(load_error(*open("tfrecord:" + file, "val"), 0),
            "[data.tfrecord] the record has features image, label, weight (byte 0 of " + file +
                "): expected the image in picture");
  options.image_key = "label";
  EXPECT_EQ(load_error(*open("tfrecord:" + file, "val"), 0),
            "[data.tfrecord] feature label has 1 integer value (byte 0 of " + file +
                "): expected the bytes of one image file");
  options.image_key = "";
  options.label_key = "weight";
  EXPECT_EQ(load_error(*open("tfrecord:" + file, "val"), 0),
            "[data.tfrecord] feature weight has 1 float value (byte 0 of " + file +
                "): expected one integer or one text as the label");
}

TEST_F(Archives, TfRecordFilesThatAreMissingFromAFolder) {
  const fs::path root = copy("tfrecord");
  fs::remove(root / "train-00000-of-00002");
  EXPECT_EQ(open_error("tfrecord:" + root.string()),
            concat("[data.open_tfrecord] 1 of 2 files that the names count do not exist, the first is ",
                   (root / "train-00000-of-00002").string(), "; name the existing files to use them alone"));
  EXPECT_EQ(open("tfrecord:" + (root / "train-*").string())->size(), 2) << "asked for by name";
}

TEST_F(Archives, ValidationOnTheTrainingShardsIsNamed) {
  const fs::path root = copy("wds");
  fs::rename(root / "set-train-000000.tar", root / "a.tar");
  for (const char* name : {"set-train-000001.tar", "set-val-000000.tar.gz"}) fs::remove(root / name);
  open("wds:" + root.string());
  EXPECT_TRUE(warnings.empty());
  open("wds:" + root.string(), "val");
  EXPECT_EQ(warnings, Names{"[data.open_wds] other files for val than for train: both are " +
                            (root / "a.tar").string() + " (in " + root.string() +
                            "; their names speak of no split: write train=FILES,val=FILES)"});
}

TEST_F(Archives, TfRecordsWithWrongChecksumsOrCutOff) {
  const fs::path root = copy("tfrecord");
  const std::string first = (root / "train-00000-of-00002").string();
  const std::string whole = read_file(first);
  std::string damaged = whole;
  damaged[60] = static_cast<char>(damaged[60] ^ 1);  // in the image of record 0
  write_text(first, damaged);
  const auto source = open("tfrecord:" + root.string());
  ASSERT_EQ(source->size(), 4);
  const std::string error = load_error(*source, 0);
  EXPECT_TRUE(error.starts_with("[formats.tfrecord] a record has checksum ")) << error;
  EXPECT_TRUE(error.find(": the file is damaged (" + first + "[0]): expected ") != std::string::npos)
      << error;
  EXPECT_EQ(load_error(*source, 1), "no error");
  damaged = whole;
  damaged[3] = 1;  // in the length of record 0
  write_text(first, damaged);
  const auto lost = open("tfrecord:" + root.string());
  ASSERT_EQ(lost->size(), 3);
  EXPECT_EQ(load_error(*lost, 0), "[data.tfrecord] the CRC of the length of a record is wrong (byte 0 of " +
                                      first + "); the rest of the file is not used");
  fs::resize_file(first, whole.size() - 1);
  write_text(first, whole.substr(0, whole.size() - 1));
  const auto cut = open("tfrecord:" + root.string());
  ASSERT_EQ(cut->size(), 4);
  const std::string where = std::to_string(16 + static_cast<uint8_t>(whole[0]));
  EXPECT_EQ(load_error(*cut, 1), "[data.tfrecord] the file is cut off inside a record (byte " + where +
                                     " of " + first + "); the rest of the file is not used");
}

TEST_F(Archives, RealTfRecordFiles) {
  TESSERA_SHARED_OR_SKIP(folder, "records");
  const auto source = open("tfrecord:" + (folder / "cifar10_{split}.tfrecord").string());
  EXPECT_GT(source->size(), 100);
  EXPECT_EQ(source->classes().size(), 10U);
  for (int64_t i = 0; i < source->size(); i += 10) EXPECT_EQ(source->read(i, 3).width, 32);
  const auto samples = open("wds:" + (folder / "sample.tgz").string());
  EXPECT_GT(samples->size(), 10);
  for (int64_t i = 0; i < samples->size(); ++i) EXPECT_GT(samples->read(i, 3).width, 0);
}

TEST_F(Archives, TensorFlowDatasets) {
  const std::string root = (kFixtures / "tfds" / "tiny").string();
  const auto newest = open("tfrecord:" + root);
  expect_set(*newest, 3);
  EXPECT_EQ(newest->classes(), (Names{"cat", "dog", "fish"}));
  EXPECT_EQ(newest->sample_name(1), "tiny-train.tfrecord-00000-of-00001[1]");
  expect_set(*open("tfrecord:" + root + "/1.2.0/"), 1);
  EXPECT_EQ(open_error("tfrecord:" + root, "val"),
            concat("[data.open_tfrecord] ", root,
                   "/1.10.0/dataset_info.json has the splits train: expected val or validation or test"));
  const fs::path copied = copy("tfds") / "tiny";
  fs::create_directories(copied / "b");
  fs::rename(copied / "1.2.0", copied / "b" / "1.2.0");
  fs::create_directories(copied / "a");
  fs::rename(copied / "1.10.0", copied / "a" / "1.10.0");
  EXPECT_EQ(open_error("tfrecord:" + copied.string()),
            concat("[data.tfds] ", copied.string(),
                   " has several configurations: a, b; add one of them to the path"));
  expect_set(*open("tfrecord:" + (copied / "a").string()), 3);
  std::string info = read_file(copied / "a" / "1.10.0" / "dataset_info.json");
  info.replace(info.find("\"3\""), 3, "\"4\"");
  write_text(copied / "a" / "1.10.0" / "dataset_info.json", info);
  open("tfrecord:" + (copied / "a").string());
  EXPECT_EQ(warnings, Names{"[data.open_tfrecord] " +
                            (copied / "a" / "1.10.0" / "tiny-train.tfrecord-00000-of-00001").string() +
                            " has 3 records: expected 4, as dataset_info.json says"});
  info.replace(info.find("\"tfrecord\""), 10, "\"riegeli\"");
  write_text(copied / "a" / "1.10.0" / "dataset_info.json", info);
  EXPECT_EQ(open_error("tfrecord:" + (copied / "a").string()),
            concat("[data.open_tfrecord] ", (copied / "a" / "1.10.0" / "dataset_info.json").string(),
                   " names the format riegeli: expected tfrecord"));
}

TEST_F(Archives, TensorFlowDatasetsWithoutOneImage) {
  const fs::path folder = copy("tfds") / "tiny" / "1.2.0";
  const std::string spec = "tfrecord:" + folder.string(), features = (folder / "features.json").string();
  write_text(features, R"({"content": {"a": {"type": "x.Image"}, "b": {"type": "x.Image"}}})");
  EXPECT_EQ(
      open_error(spec),
      concat("[data.open_tfrecord] ", features,
             " has several features (a, b) that could be an Image; set data.image_key and data.label_key"));
  options.image_key = "image";
  EXPECT_EQ(open_error(spec),
            concat("[data.open_tfrecord] ", features,
                   " has no feature that could be a ClassLabel; set data.image_key and data.label_key"));
  fs::remove(features);
  expect_set(*open(spec), 1);
  const std::string shard = (folder / "tiny-train.tfrecord-00000-of-00001").string();
  write_text(shard, "");
  EXPECT_EQ(open_error(spec), concat("[data.open_tfrecord] 1 files have no records, the first is ", shard));
  fs::remove(shard);
  EXPECT_EQ(open_error(spec), concat("[data.index] cannot read ", shard, ": No such file or directory"));
}

}  // namespace
}  // namespace tessera::data
