// SPDX-License-Identifier: Apache-2.0
// Files that PyTorch/XLA's own FSDP wrote (fixtures/xla_fsdp, made by make_xla_fsdp_fixture.py).
#include "tessera/checkpoint/xla_fsdp.h"

#include <gtest/gtest.h>

#include <fstream>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

const std::string kFixtures = TESSERA_SOURCE_DIR "/tests/checkpoint/fixtures/xla_fsdp/";

std::vector<std::byte> whole(TensorSource& source, size_t tensor) {
  const auto& [name, dtype, shape] = source.tensors()[tensor];
  std::vector<std::byte> bytes(static_cast<size_t>(count_of(shape)) * formats::dtype_size(dtype));
  source.read(tensor, 0, bytes);
  return bytes;
}

// How XLA's own consolidation, and the making of the fixture, name it.
std::string name_there(const std::string& name) {
  for (const std::string_view prefix : {"param/", "buffer/"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

void expect_equal(TensorSource& source, const std::string& variant) {
  const formats::SafetensorsReader expected(kFixtures + variant + "_whole.safetensors");
  EXPECT_EQ(source.tensors().size(), expected.entries().size());
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const auto& tensor = source.tensors()[i];
    const auto* entry = expected.find(name_there(tensor.name));
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(tensor.dtype, entry->dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, entry->shape) << tensor.name;
    std::vector<std::byte> bytes(entry->end - entry->begin);
    expected.read(*entry, 0, bytes);
    EXPECT_EQ(whole(source, i), bytes) << tensor.name;
  }
}

class XlaFsdp : public ::testing::TestWithParam<std::string> {};

TEST_P(XlaFsdp, TensorsAndMomentsAreTheWholeOnes) {
  XlaFsdpCheckpoint source(xla_fsdp_files(kFixtures + GetParam(), "_rank-*-of-*.pth"));
  EXPECT_EQ(source.world(), 2);
  EXPECT_EQ(source.progress().step, 2);
  expect_equal(source, GetParam());
}

TEST_P(XlaFsdp, AsACheckpointOfAnyRanks) {
  const TemporaryFolder folder("tessera-xla");
  XlaFsdpCheckpoint source(xla_fsdp_files(kFixtures + GetParam(), "_rank-*-of-*.pth"),
                           {.rename = {{"blocks.", "layers."}}, .recipe_toml = "[model]\n"});
  const auto checkpoint = reshard(source, folder.path(), 3);
  EXPECT_EQ(checkpoint.filename(), "step_00000002");
  EXPECT_EQ(verify(checkpoint), Names());
  const auto manifest = read_manifest(checkpoint);
  EXPECT_EQ(manifest.progress.recipe_toml, "[model]\n");
  EXPECT_NE(manifest.progress.model_json.find(R"("layers.0.fc.weight":[30,20])"), std::string::npos);
  RankState state;
  state.add({"adamw.exp_avg/layers.0.fc.weight", "F32", {30, 20}}, 0, 600);
  load(checkpoint, state.shards);
  const formats::SafetensorsReader expected(kFixtures + GetParam() + "_whole.safetensors");
  std::vector<std::byte> bytes(2400);
  expected.read(*expected.find("adamw.exp_avg/blocks.0.fc.weight"), 0, bytes);
  EXPECT_EQ(state.memory[0], bytes);
}

TEST_P(XlaFsdp, AsOneFileWithoutTheOptimizer) {
  const TemporaryFolder folder("tessera-xla");
  XlaFsdpCheckpoint source(xla_fsdp_files(kFixtures + GetParam(), "_rank-*-of-*.pth"),
                           {.with_optimizer = false});
  EXPECT_EQ(source.progress().step, 0);
  consolidate(source, folder.path() / "x.safetensors", {});
  const formats::SafetensorsReader reader(folder.path() / "x.safetensors");
  EXPECT_EQ(reader.entries().size(), 10U) << "7 parameters, 3 buffers";
  EXPECT_NE(reader.find("blocks.0.norm.num_batches_tracked"), nullptr);
  EXPECT_EQ(reader.find("adamw.exp_avg/pos_embed"), nullptr);
}
TEST_P(XlaFsdp, StateAsTheLibraryNamesIt) {
  XlaFsdpCheckpoint source(xla_fsdp_files(kFixtures + GetParam(), "_rank-*-of-*.pth"), {.for_library = true});
  const auto& tensors = source.tensors();
  const auto named = [&](const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& tensor) { return tensor.name == name; });
  };
  EXPECT_TRUE(named("optimizer/exp_avg_sq/blocks.0.norm.bias"));
  EXPECT_FALSE(named("adamw.exp_avg_sq/blocks.0.norm.bias"));
  EXPECT_NE(source.progress().json.find(R"("blocks.0.norm.bias":2)"), std::string::npos)
      << source.progress().json;
}
INSTANTIATE_TEST_SUITE_P(Written, XlaFsdp, ::testing::Values("plain", "flat", "dim0"));

class WrongXlaFiles : public ::testing::Test {
 protected:
  std::string error(const std::vector<fs::path>& files) {
    return error_text([&] { XlaFsdpCheckpoint source(files); });
  }
  // A copy of a file with one text in it replaced by another as long.
  fs::path changed(const std::string& name, const std::string& from, const std::string& to) {
    std::string bytes = read_file(kFixtures + name);
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    const fs::path path = folder.path() / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  const TemporaryFolder folder{"tessera-xla"};
  const fs::path rank0 = kFixtures + "plain_rank-0-of-2.pth", rank1 = kFixtures + "plain_rank-1-of-2.pth";
};

TEST_F(WrongXlaFiles, MissingDoubledAndMixedRanks) {
  EXPECT_EQ(
      error_text([&] { xla_fsdp_files(kFixtures + "none", "_*.pth"); }),
      concat("[checkpoint.import] there is no file ", kFixtures,
             "none_*.pth: expected files of PyTorch/XLA's FSDP; check --ckpt_prefix and --ckpt_suffix"));
  EXPECT_EQ(
      error({rank1}),
      concat(
          "[checkpoint.import] 1 files are given, but ", rank1.string(),
          " was saved by 2 ranks: expected one file for each rank; check --ckpt_prefix and --ckpt_suffix"));
  EXPECT_EQ(error({rank0, rank0}), concat("[checkpoint.import] there is a second file of rank 0 (",
                                          rank0.string(), "): expected one file for each rank"));
  EXPECT_EQ(error({rank1, rank1}), concat("[checkpoint.import] there is no file of rank 0 (", rank1.string(),
                                          "): expected one file for each rank"));
  const fs::path other = kFixtures + "flat_rank-1-of-2.pth";
  EXPECT_EQ(error({rank0, other}),
            concat("[checkpoint.import] their number differs between ", rank0.string(), " and ",
                   other.string(), ": expected the same tensors on every rank; give the files of one save"));
  EXPECT_TRUE(
      error({rank0, kFixtures + "dim0_rank-1-of-2.pth"}).starts_with("[checkpoint.import] _fsdp_shard"));
}

TEST_F(WrongXlaFiles, FilesThatLackSomething) {
  auto file = changed("plain_rank-0-of-2.pth", "shard_metadata", "shard_netadata");
  EXPECT_EQ(error({file, rank1}), concat("[checkpoint.import] shard_metadata is missing (", file.string(),
                                         "): expected model.get_shard_metadata()"));
  file = changed("plain_rank-0-of-2.pth", "_orig_size", "_prig_size");
  EXPECT_TRUE(error({file, rank1}).starts_with("[checkpoint.import] _orig_size of _fsdp_shard"))
      << error({file});
  file = changed("flat_rank-0-of-2.pth", "flatten_info", "flatten_nfoi");
  EXPECT_TRUE(error({file}).starts_with("[checkpoint.import] flatten_info is missing ("));
  file = changed("plain_rank-0-of-2.pth", "world_size", "world_sizf");
  EXPECT_TRUE(error({file}).starts_with("[checkpoint.import] world_size is missing ("));
  file = changed("plain_rank-0-of-2.pth", "param_groups", "param_groupt");
  EXPECT_TRUE(error({file}).starts_with("[checkpoint.import] param_groups is missing ("));
}

TEST_F(WrongXlaFiles, RenamesThatMakeTwoOfOne) {
  EXPECT_EQ(
      error_text([&] {
        XlaFsdpCheckpoint source({rank0, rank1}, {.rename = {{"head.weight", "x"}, {"head.bias", "x"}}});
      }),
      concat("[checkpoint.import] ", rank0.string(), " has two tensors with the name param/x"));
}

}  // namespace
}  // namespace tessera::checkpoint
