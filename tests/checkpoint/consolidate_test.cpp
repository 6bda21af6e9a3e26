// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

// Bytes that differ from the formula; what is no state has lost "param/".
int64_t wrong_bytes_of(const formats::SafetensorsReader& reader, const Tensors& tensors = sample_tensors()) {
  int64_t wrong = 0;
  for (const auto& entry : reader.entries()) {
    std::vector<std::byte> bytes(entry.end - entry.begin);
    reader.read(entry, 0, bytes);
    const bool state =
        std::any_of(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == entry.name; });
    const SampleBytes sample(state ? entry.name : "param/" + entry.name, 0);
    for (size_t i = 0; i < bytes.size(); ++i) wrong += bytes[i] != sample(i);
  }
  return wrong;
}

void consolidate_folder(const Folders& checkpoint, const fs::path& output,
                        const ConsolidateOptions& options = {}) {
  StoredCheckpoint source(checkpoint);
  consolidate(source, output, options);
}

TEST(Consolidate, OneFileOfWholeParameters) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 3);
  const auto output = folder.path() / "model.safetensors";
  consolidate_folder(folder.path() / "step_00000001", output, {.metadata = {{"author", "me"}}});
  const formats::SafetensorsReader reader(output);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.metadata().at("author"), "me");
  EXPECT_EQ(reader.metadata().at("tessera.step"), "1");
  EXPECT_EQ(reader.metadata().at("tessera.recipe"), at_step(1).recipe_toml);
  Names names;
  for (const auto& entry : reader.entries()) names.push_back(entry.name);
  EXPECT_EQ(names, Names({"blocks.0.qkv.weight", "cls_token", "nothing", "scale", "half"}));
  EXPECT_EQ(reader.find("blocks.0.qkv.weight")->shape, std::vector<int64_t>({7, 13}));
  EXPECT_EQ(wrong_bytes_of(reader), 0);
  EXPECT_EQ(names_in(folder.path()), Names({"model.safetensors", "step_00000001"}));
}

TEST(Consolidate, ARecipeLosesTheFoldersOfThisMachine) {
  EXPECT_EQ(
      without_local_paths("[data]\nsource = \"folder:/home/me/flowers\"\nmix = [\"zip:/a/b\", \"/c/d/\"]\n"
                          "train = \"train[:90%]\"\n[run]\ndir = \"/home/me/runs/x\"\n"),
      "[data]\nsource = \"folder:flowers\"\nmix = [\"zip:b\", \"d\"]\n"
      "train = \"train[:90%]\"\n[run]\ndir = \"x\"\n");
  EXPECT_EQ(without_local_paths("s = \"wds:train=/data/t-{000..146}.tar,val=/data/v::/w/x.tar\"\n"),
            "s = \"wds:train=t-{000..146}.tar,val=v::x.tar\"\n");
  EXPECT_EQ(without_local_paths("s = \"fake:8\" # a/b\np = 1 / 2\nq = \"a/b\"\n"),
            "s = \"fake:8\" # a/b\np = 1 / 2\nq = \"a/b\"\n");
}

TEST(Consolidate, WithStateKeepsFullNamesOfTheRest) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 3);
  const auto output = folder.path() / "all.safetensors";
  consolidate_folder(folder.path() / "step_00000001", output, {.with_state = true});
  const formats::SafetensorsReader reader(output);
  EXPECT_EQ(reader.entries().size(), sample_tensors().size());
  EXPECT_NE(reader.find("adamw.exp_avg/blocks.0.qkv.weight"), nullptr);
  EXPECT_NE(reader.find("mask"), nullptr);
  EXPECT_EQ(wrong_bytes_of(reader), 0);
}

TEST(Consolidate, TheAverageInThePlaceOfTheParameters) {
  const TemporaryFolder folder("tessera-checkpoint");
  const Tensors tensors = {{"param/w", "F32", {3, 2}}, {"ema/w", "F32", {3, 2}}, {"buffer/b", "F32", {2}}};
  for (const auto& error : save_ranks({.folder = folder.path()}, tensors, 1, 2, 0)) EXPECT_EQ(error, "");
  const auto output = folder.path() / "average.safetensors";
  consolidate_folder(folder.path() / "step_00000001", output, {.average = true});
  const formats::SafetensorsReader reader(output);
  ASSERT_EQ(reader.entries().size(), 2U);
  const auto* entry = reader.find("w");
  ASSERT_NE(entry, nullptr);
  std::vector<std::byte> bytes(entry->end - entry->begin);
  reader.read(*entry, 0, bytes);
  const SampleBytes sample("ema/w", 0);
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], sample(i));
  save_sample({.folder = folder.path()}, 2, 1);
  EXPECT_EQ(
      error_text([&] {
        consolidate_folder(folder.path() / "step_00000002", output, {.average = true});
      }).substr(0, 97),
      "[checkpoint.consolidate] the checkpoint has no moving average of the weights (ema/...), only adam");
}

TEST(Consolidate, TensorsLargerThanTheWindow) {
  const TemporaryFolder folder("tessera-checkpoint");
  const Tensors tensors = {{"param/large", "F32", {(9 << 20) + 3}}};  // two windows and a rest
  for (const auto& error : save_ranks({.folder = folder.path()}, tensors, 1, 2, 0)) EXPECT_EQ(error, "");
  const auto output = folder.path() / "all.safetensors";
  consolidate_folder(folder.path() / "step_00000001", output);
  EXPECT_EQ(wrong_bytes_of(formats::SafetensorsReader(output), tensors), 0);
}

TEST(Consolidate, Errors) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 2);
  const auto checkpoint = folder.path() / "step_00000001", output = folder.path() / "out.safetensors";
  const auto error = [&](const fs::path& to, const ConsolidateOptions& options = {}) {
    return error_text([&] { consolidate_folder(checkpoint, to, options); });
  };
  EXPECT_EQ(error(output, {.dtype = "I8"}),
            "[checkpoint.consolidate] cannot convert weights to the dtype \"I8\": expected F32, BF16 or F16");
  EXPECT_EQ(
      error("/no/such/folder/x"),
      "[file.create] cannot create /no/such/folder/x: /no/such/folder does not exist: expected a file in a "
      "folder that exists; make it first: mkdir -p /no/such/folder");
  fs::create_directory(output);
  EXPECT_EQ(error(output), "[file.write] cannot write " + output.string() + ": Is a directory");
  const auto shard = checkpoint / "shard-00001-of-00002.safetensors";
  std::string bytes = read_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_NE(error(folder.path() / "x").find("has the checksum "), std::string::npos);
  EXPECT_EQ(names_in(folder.path()), Names({"out.safetensors", "step_00000001"}));

  const auto errors =
      save_ranks({.folder = folder.path()}, {{"ema/w", "F32", {2}}, {"mask", "BOOL", {2}}}, 2, 1, 0);
  EXPECT_EQ(errors, Names({""}));
  EXPECT_EQ(error_text([&] { consolidate_folder(folder.path() / "step_00000002", output); }),
            "[checkpoint.consolidate] the checkpoint has no parameters (param/...), only ema/");
  save_ranks({.folder = folder.path()}, {{"param/w", "F32", {2}}, {"buffer/w", "F32", {2}}}, 3, 1, 0);
  EXPECT_EQ(error_text([&] { consolidate_folder(folder.path() / "step_00000003", output); }),
            "[checkpoint.consolidate] the checkpoint has a parameter and a buffer with the same name, w: "
            "expected different names");
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

TEST(Convert, RoundsToTheNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers = {
      0.0F,           -0.0F,          1.0F,     -2.5F,         1.00390625F,    1.01171875F,
      65504.0F,       65519.9F,       65520.0F, -1e30F,        infinity,       5.9604645e-08F,
      2.9802322e-08F, 8.9406967e-08F, 6.1e-05F, 3.4028235e38F, 1.00048828125F, 1.00146484375F};
  EXPECT_EQ(convert(bytes_of(numbers), "F32", "F16"),
            bytes_of<uint16_t>({0x0000, 0x8000, 0x3C00, 0xC100, 0x3C04, 0x3C0C, 0x7BFF, 0x7BFF, 0x7C00,
                                0xFC00, 0x7C00, 0x0001, 0x0000, 0x0002, 0x03FF, 0x7C00, 0x3C00, 0x3C02}));
  EXPECT_EQ(convert(bytes_of<float>({1.0F, 1.00390625F, 1.01171875F, -infinity, 3.4028235e38F, 1e-40F}),
                    "F32", "BF16"),
            bytes_of<uint16_t>({0x3F80, 0x3F80, 0x3F82, 0xFF80, 0x7F80, 0x0001}));
  EXPECT_EQ(convert(bytes_of<double>({0.1, 1e300}), "F64", "F32"), bytes_of<float>({0.1F, infinity}));
}

TEST(Convert, EveryHalfNumberComesBack) {
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (const std::string half : {"F16", "BF16"}) {
    const auto back = convert(convert(bytes_of(all), half, "F32"), "F32", half);
    int64_t other = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      uint16_t value = 0;
      std::memcpy(&value, back.data() + 2 * i, 2);
      const uint16_t exponent = half == "F16" ? 0x7C00 : 0x7F80;
      const bool nan = (all[i] & exponent) == exponent && (all[i] & ~exponent & 0x7FFF) != 0;
      other += nan ? (value & exponent) != exponent || (value & ~exponent & 0x7FFF) == 0 : value != all[i];
    }
    EXPECT_EQ(other, 0) << half;
  }
}

TEST(Consolidate, ConvertsParametersAndLeavesTheRest) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 2);
  const auto output = folder.path() / "half.safetensors";
  consolidate_folder(folder.path() / "step_00000001", output, {.with_state = true, .dtype = "BF16"});
  const formats::SafetensorsReader reader(output);
  EXPECT_EQ(reader.find("cls_token")->dtype, "BF16");
  EXPECT_EQ(reader.find("half")->dtype, "BF16");
  EXPECT_EQ(reader.find("adamw.exp_avg/blocks.0.qkv.weight")->dtype, "F32");
  EXPECT_EQ(reader.find("adamw.step")->dtype, "I64");
  auto state = part_of({sample_tensors()[1]}, 0, 1);
  state.fill(0);
  std::vector<std::byte> found(reader.find("blocks.0.qkv.weight")->end -
                               reader.find("blocks.0.qkv.weight")->begin);
  reader.read(*reader.find("blocks.0.qkv.weight"), 0, found);
  EXPECT_EQ(found, convert(state.memory[0], "F32", "BF16"));
}

// Python's safetensors reads our file, writes the same bytes itself, and we read what it wrote.
TEST(Consolidate, PythonReadsOursAndWeReadPythons) {
  const char* chosen = std::getenv("TESSERA_PEERS_PYTHON");
  const fs::path python = chosen ? chosen : TESSERA_SOURCE_DIR "/.venv-peers/bin/python";
  if (!fs::exists(python)) {
    GTEST_SKIP() << "no Python with safetensors (run ./dev peers, or set TESSERA_PEERS_PYTHON)";
  }
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 3);
  const auto ours = folder.path() / "ours.safetensors", theirs = folder.path() / "theirs.safetensors";
  consolidate_folder(folder.path() / "step_00000001", ours, {.with_state = true});
  const std::string command = '"' + python.string() +
                              "\" \"" TESSERA_SOURCE_DIR "/tests/checkpoint/read_safetensors.py\" \"" +
                              ours.string() + "\" \"" + theirs.string() + '"';
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "that Python has no safetensors";
  ASSERT_EQ(status, 0) << command;
  const formats::SafetensorsReader reader(theirs);
  EXPECT_EQ(reader.entries().size(), sample_tensors().size());
  EXPECT_EQ(wrong_bytes_of(reader), 0);
  // The order of metadata is random there; all else is the same, byte for byte.
  const formats::SafetensorsReader our_reader(ours);
  EXPECT_EQ(reader.metadata(), our_reader.metadata());
  const auto from_tensors = [](const fs::path& path) {
    const std::string bytes = read_file(path);
    return bytes.substr(bytes.find("\"adamw.step\""));
  };
  EXPECT_TRUE(from_tensors(theirs) == from_tensors(ours));
}

}  // namespace
}  // namespace tessera::checkpoint
