#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "sample_state.h"
#include "tessera/base/file.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

int64_t wrong_bytes_of(const formats::SafetensorsReader& reader, const std::string& prefix) {
  int64_t wrong = 0;
  for (const auto& entry : reader.entries()) {
    std::vector<std::byte> bytes(entry.end - entry.begin);
    reader.read(entry, 0, bytes);
    const SampleBytes sample(prefix + entry.name, 0);
    for (size_t i = 0; i < bytes.size(); ++i) wrong += bytes[i] != sample(i);
  }
  return wrong;
}

TEST(Export, OneFileOfWholeTensors) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 3);
  const auto output = folder.path() / "model.safetensors";
  export_safetensors(folder.path() / "step_00000001", "param/", output, {{"format", "pt"}});
  const formats::SafetensorsReader reader(output);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  Names names;
  for (const auto& entry : reader.entries()) names.push_back(entry.name);
  EXPECT_EQ(names, Names({"blocks.0.qkv.weight", "cls_token", "nothing", "scale", "half"}));
  EXPECT_EQ(reader.find("blocks.0.qkv.weight")->shape, std::vector<int64_t>({7, 13}));
  EXPECT_EQ(wrong_bytes_of(reader, "param/"), 0);
  EXPECT_EQ(names_in(folder.path()), Names({"model.safetensors", "step_00000001"}));
}

TEST(Export, AllTensorsAndLargePieces) {
  const TemporaryFolder folder("tessera-checkpoint");
  const Tensors tensors = {{"large", "F32", {(17 << 20) + 3}}};  // two buffers and a rest
  for (const auto& error : save_ranks({.folder = folder.path()}, tensors, 1, 1, 0)) EXPECT_EQ(error, "");
  const auto output = folder.path() / "all.safetensors";
  export_safetensors(folder.path() / "step_00000001", "", output, {});
  EXPECT_EQ(wrong_bytes_of(formats::SafetensorsReader(output), ""), 0);
}

TEST(Export, Errors) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 2);
  const auto checkpoint = folder.path() / "step_00000001", output = folder.path() / "out.safetensors";
  EXPECT_EQ(
      error_text([&] { export_safetensors(checkpoint, "ema/", output, {}); }),
      "[checkpoint.export] tensors whose names begin with \"ema/\": there are none, only adamw.exp_avg/, "
      "param/ (" +
          checkpoint.string() + ")");
  EXPECT_NE(error_text([&] {
              export_safetensors(checkpoint, "param/", "/no/such/folder/x", {});
            }).find("cannot create /no/such/folder/x.tmp"),
            std::string::npos);
  fs::create_directory(output);
  EXPECT_EQ(error_text([&] { export_safetensors(checkpoint, "param/", output, {}); }),
            "[checkpoint.export] cannot write " + output.string() + ": Is a directory");
  const auto shard = checkpoint / "shard-00001-of-00002.safetensors";
  std::string bytes = read_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_NE(error_text([&] {
              export_safetensors(checkpoint, "param/", folder.path() / "x", {});
            }).find("its checksum is"),
            std::string::npos);
  EXPECT_EQ(names_in(folder.path()), Names({"out.safetensors", "step_00000001"}));
}

// Python's safetensors reads our export, writes the same bytes itself, and we read what it wrote.
TEST(Export, PythonReadsOursAndWeReadPythons) {
  const char* chosen = std::getenv("TESSERA_PEERS_PYTHON");
  const fs::path python = chosen ? chosen : TESSERA_SOURCE_DIR "/.venv-peers/bin/python";
  if (!fs::exists(python)) {
    GTEST_SKIP() << "no Python with safetensors (run ./dev peers, or set TESSERA_PEERS_PYTHON)";
  }
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 3);
  const auto ours = folder.path() / "ours.safetensors", theirs = folder.path() / "theirs.safetensors";
  export_safetensors(folder.path() / "step_00000001", "", ours, {{"format", "pt"}});
  const std::string command = '"' + python.string() +
                              "\" \"" TESSERA_SOURCE_DIR "/tests/checkpoint/read_safetensors.py\" \"" +
                              ours.string() + "\" \"" + theirs.string() + '"';
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "that Python has no safetensors";
  ASSERT_EQ(status, 0) << command;
  const formats::SafetensorsReader reader(theirs);
  EXPECT_EQ(reader.entries().size(), sample_tensors().size());
  EXPECT_EQ(wrong_bytes_of(reader, ""), 0);
  EXPECT_EQ(read_file(theirs), read_file(ours));
}

}  // namespace
}  // namespace tessera::checkpoint
