// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/inspect.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tessera/formats/png.h"
#include "tessera/prepare/image_kind.h"
#include "tests/data/shared_data.h"
#include "tests/error_text.h"
#include "tests/prepare/memory_source.h"

namespace tessera::prepare {
namespace {
namespace fs = std::filesystem;

std::string png(int64_t width, int64_t height, int64_t channels, uint8_t level) {
  const std::vector<uint8_t> pixels(static_cast<size_t>(width * height * channels), level);
  const auto bytes = formats::encode_png(pixels.data(), width, height, channels);
  return {bytes.begin(), bytes.end()};
}

MemorySource mixed_source() {
  MemorySource source({"cat", "d<g", "none"});
  for (int i = 0; i < 6; ++i) source.add(concat("train/cat/", i, ".png"), 0, png(40 + i, 60, 3, 90));
  source.add("train/d<g/gray.jpg", 1, png(300, 40, 1, 50));
  source.add("train/d<g/cut.png", 1, png(40, 40, 3, 7).substr(0, 60));
  source.add("train/d<g/unreadable.png", 1, "unreadable");
  source.add("train/d<g/unlabelled.png", -1, png(40, 40, 3, 7));
  return source;
}

TEST(Inspect, CountsSizesFormatsAndFaults) {
  const MemorySource source = mixed_source();
  for (const int workers : {1, 4}) {
    const Inspection found = inspect(source, {.full = true, .samples = 1, .workers = workers});
    EXPECT_TRUE(found.full);
    EXPECT_EQ(found.samples, 10);
    EXPECT_EQ(found.class_counts, (std::vector<int64_t>{6, 3, 0}));
    EXPECT_EQ(found.formats, (std::map<std::string, int64_t>{{"PNG RGB", 6}, {"PNG gray", 1}}));
    const auto width = spread_of(values_of(found, [](const Seen& seen) { return seen.width; }));
    EXPECT_EQ(width.least, 40);
    EXPECT_EQ(width.median, 43);
    EXPECT_EQ(width.most, 300);
    EXPECT_EQ(found.odd, (std::map<std::string, std::vector<int64_t>>{
                             {"PNG named as JPEG", {6}}, {"gray", {6}}, {"longer than 4 : 1", {6}}}));
    ASSERT_EQ(found.broken.size(), 3U);
    EXPECT_EQ(found.broken[0].name, "train/d<g/cut.png");
    EXPECT_TRUE(found.broken[0].reason.starts_with("[formats.decode_png] cannot decode the PNG image "))
        << found.broken[0].reason;
    EXPECT_EQ(found.broken[1].reason, "[test.load] cannot read train/d<g/unreadable.png");
    EXPECT_EQ(found.broken[2].reason, "[prepare.inspect] train/d<g/unlabelled.png has no label");
  }
}

TEST(Inspect, APartOfTheSamplesIsSpreadEvenly) {
  MemorySource source({"a"});
  for (int i = 0; i < 100; ++i) source.add(concat("train/a/", i, ".png"), 0, png(8, 8, 1, 1));
  int64_t told = 0;
  const Inspection found =
      inspect(source, {.full = false, .samples = 10, .workers = 2}, [&](int64_t done, int64_t all) {
        EXPECT_EQ(done, ++told);
        EXPECT_EQ(all, 10);
      });
  EXPECT_FALSE(found.full);
  ASSERT_EQ(found.seen.size(), 10U);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(found.seen[static_cast<size_t>(i)].index, 10 * i);
  EXPECT_EQ(found.class_counts, std::vector<int64_t>{100});
  EXPECT_TRUE(found.odd.empty()) << "all of them are gray and small: that is this data set's way";
  EXPECT_TRUE(inspect(source, {.full = false, .samples = 100, .workers = 1}).full);
}

TEST(Inspect, TextJsonAndPageTellTheSame) {
  const MemorySource source = mixed_source();
  Inspection found = inspect(source, {.full = true});
  found.source = "folder:<x>";
  found.split = "train";
  std::ostringstream text, json;
  print_text(found, text);
  EXPECT_EQ(text.str().substr(0, text.str().find("broken")),
            "folder:<x>, split train: 10 samples in 3 classes; all decoded\n"
            "file size: median " +
                text.str().substr(text.str().find("median ") + 7,
                                  text.str().find("\nwidth") - text.str().find("median ") - 7) +
                "\nwidth: median 43, 40 to 300\nheight: median 60, 40 to 60\n"
                "formats  6 PNG RGB, 1 PNG gray\nodd      1 PNG named as JPEG, 1 gray, 1 longer than 4 : 1\n"
                "images per class: median 3, 0 to 6\n  cat  6\n  d<g  3\n  none  0\n");
  EXPECT_NE(text.str().find("broken   3\n  train/d<g/cut.png: [formats.decode_png]"), std::string::npos);
  print_json(found, json);
  const auto parsed = nlohmann::json::parse(json.str());
  EXPECT_EQ(parsed.at("looked_at"), 10);
  EXPECT_EQ(parsed.at("classes").at(1), (nlohmann::json{{"name", "d<g"}, {"samples", 3}}));
  EXPECT_EQ(parsed.at("width"), (nlohmann::json{{"least", 40}, {"median", 43}, {"most", 300}}));
  EXPECT_EQ(parsed.at("broken").size(), 3U);
  EXPECT_EQ(parsed.at("odd").at("gray"), 1);
  const TemporaryFolder folder("tessera-inspect");
  write_page(folder.path() / "x.html", found, source);
  const std::string page = read_file(folder.path() / "x.html");
  for (const char* part : {"<h1>folder:&lt;x&gt;</h1>", "d&lt;g", "src=\"data:image/png;base64,", "cut.png",
                           "Broken samples", "PNG named as JPEG", "Width × height"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("d<g"), std::string::npos) << "a name is text, never a tag";
  EXPECT_EQ(page.find("://"), std::string::npos) << "the page needs nothing from elsewhere";
}

TEST(Inspect, NothingAtAll) {
  const MemorySource source({});
  const Inspection found = inspect(source, {.full = true});
  std::ostringstream out;
  print_text(found, out);
  EXPECT_EQ(out.str().find("middle, from 0 B"), std::string::npos) << "sizes of no image";
  print_json(found, out);
  const TemporaryFolder folder("tessera-inspect");
  write_page(folder.path() / "x.html", found, source);
}

TEST(Inspect, AThousandClassesFitIntoAPage) {
  std::vector<std::string> classes;
  for (int i = 0; i < 1000; ++i) classes.push_back(concat("n", 10'000'000 + i));
  MemorySource source(classes);
  for (int i = 0; i < 1000; ++i)
    source.add(concat("train/x/", i, ".png"), i, png(64, 48, 3, static_cast<uint8_t>(i)));
  const Inspection found = inspect(source, {.full = true});
  const TemporaryFolder folder("tessera-inspect");
  write_page(folder.path() / "x.html", found, source);
  EXPECT_LT(fs::file_size(folder.path() / "x.html"), 8U << 20);
  std::ostringstream out;
  print_text(found, out);
  EXPECT_NE(out.str().find("    ... 980 more ...\n"), std::string::npos);
}

// A full pass over the files that others found odd decides as Pillow does, and says what each of them is.
TEST(Inspect, OddFilesAsPillow) {
  TESSERA_SHARED_OR_SKIP(folder, "odd");
  const auto cases = nlohmann::json::parse(read_file(folder / "expected.json"));
  MemorySource source({"odd"});
  std::set<std::string> expected, found_broken;
  for (const auto& entry : cases) {
    const std::string name = entry.at("file");
    source.add(name, 0, read_file(folder / name));
    if (entry.at("pillow") != "ok") expected.insert(name);
  }
  const Inspection found = inspect(source, {.full = true});
  for (const Broken& broken : found.broken) found_broken.insert(broken.name);
  EXPECT_EQ(found_broken, expected);
  EXPECT_EQ(found.seen.size() + found.broken.size(), cases.size());
  for (const Seen& seen : found.seen) {
    const auto& entry = cases.at(static_cast<size_t>(seen.index));
    const std::string bytes = source.load(seen.index).file, name = entry.at("file"), mode = entry.at("mode");
    const ImageKind kind = image_kind({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    EXPECT_TRUE(kind.name.starts_with(entry.at("format").get<std::string>())) << name << ": " << kind.name;
    EXPECT_EQ(kind.width, entry.at("size")[0]) << name;
    EXPECT_EQ(kind.height, entry.at("size")[1]) << name;
    if (entry.contains("exif_orientation") && entry.at("format") == "JPEG") {
      EXPECT_EQ(kind.orientation, entry.at("exif_orientation")) << name;
    }
    EXPECT_EQ(mode == "L" || mode == "1", kind.name.find("gray") != std::string::npos)
        << name << ": " << kind.name;
    EXPECT_EQ(mode == "CMYK", kind.channels == 4 && kind.name.starts_with("JPEG"))
        << name << ": " << kind.name;
    EXPECT_EQ(mode == "P", kind.name.find("palette") != std::string::npos) << name << ": " << kind.name;
  }
}

TEST(ImageKind, Headers) {
  const auto kind_of = [](const std::string& name) {
    const std::string bytes = read_file(std::string(TESSERA_SOURCE_DIR) + "/fuzz/corpus/image_kind/" + name);
    return image_kind({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  };
  EXPECT_EQ(kind_of("progressive").name, "JPEG progressive gray");
  EXPECT_EQ(kind_of("progressive").width, 32);
  EXPECT_EQ(kind_of("progressive").height, 16);
  EXPECT_EQ(kind_of("exif").name, "JPEG baseline YCCK");
  EXPECT_EQ(kind_of("exif").orientation, 6);
  EXPECT_EQ(kind_of("exif_far").name, "JPEG without a frame");
  EXPECT_EQ(kind_of("palette").name, "PNG palette 4 bit interlaced");
  EXPECT_EQ(kind_of("unknown").name, "PNG of an unknown type interlaced");
  EXPECT_EQ(kind_of("neither").name, "");
}

}  // namespace
}  // namespace tessera::prepare
