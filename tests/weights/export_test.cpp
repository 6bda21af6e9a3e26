// SPDX-License-Identifier: Apache-2.0
// What is exported to a family and read back is bit for bit what it was.
#include "tessera/weights/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/tools.h"
#include "tests/error_text.h"
#include "tests/weights/foreign.h"

namespace tessera::weights {
namespace {
namespace fs = std::filesystem;
using namespace testing;

struct ExportCase {
  const char* from;
  Family to;
};

class Export : public ::testing::TestWithParam<ExportCase> {
 protected:
  const TemporaryFolder folder{"tessera-weights"};
};

TEST_P(Export, AndImportIsBitwise) {
  const Model before = open_fixture(GetParam().from);
  const Family to = GetParam().to;
  const bool npz = to == Family::kGoogle || to == Family::kBigVision;
  const fs::path output = folder.path() / (npz ? "x.npz" : "x");
  // By way of a checkpoint of three ranks, as a training run leaves it.
  const auto saved = checkpoint::reshard(*before.tensors, folder.path() / "run" / "checkpoints", 3);
  const Model ours = open_model(folder.path() / "run", {.from = {}, .ema = true, .heads = 2});
  EXPECT_EQ(ours.file, saved);
  export_model(std::move(open_file(saved).source), before.description, to, output);
  const Model after = open_model(output, {.from = {}, .ema = true, .heads = npz ? 0 : 2});
  EXPECT_EQ(after.description.family, to);
  arch::VitConfig expected = before.description.config;
  if (to != Family::kHuggingFace) expected.norm_epsilon = 1e-6;
  EXPECT_EQ(after.description.config, expected);
  if (to == Family::kHuggingFace) {
    EXPECT_EQ(after.description.pixels.mean, before.description.pixels.mean);
    if (!before.description.classes.empty()) {
      EXPECT_EQ(after.description.classes, before.description.classes);
    }
  }
  const auto wanted = read_all(*before.tensors);
  auto found = read_all(*after.tensors);
  if (to == Family::kBigVision && expected.class_token) {
    // Its positions have no row for the class token, which is added to the token instead.
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(found["cls_token"][i], wanted.at("cls_token")[i] + wanted.at("pos_embed")[i]);
      EXPECT_EQ(found["pos_embed"][i], 0.0F);
      found["cls_token"][i] = wanted.at("cls_token")[i];
      found["pos_embed"][i] = wanted.at("pos_embed")[i];
    }
  }
  EXPECT_EQ(found, wanted);
}

INSTANTIATE_TEST_SUITE_P(
    Families, Export,
    ::testing::Values(
        ExportCase{"timm.safetensors", Family::kTimm}, ExportCase{"timm.safetensors", Family::kTorchvision},
        ExportCase{"timm.safetensors", Family::kHuggingFace}, ExportCase{"timm.safetensors", Family::kGoogle},
        ExportCase{"timm.safetensors", Family::kBigVision},
        ExportCase{"torchvision_tanh.pth", Family::kTorchvision},
        ExportCase{"torchvision_tanh.pth", Family::kGoogle}, ExportCase{"big_vision.npz", Family::kBigVision},
        ExportCase{"big_vision.npz", Family::kTimm}, ExportCase{"big_vision_gap.npz", Family::kBigVision},
        ExportCase{"big_vision_gap.npz", Family::kGoogle}, ExportCase{"big_vision_gap.npz", Family::kTimm},
        ExportCase{"deit_distilled.safetensors", Family::kTimm},
        ExportCase{"timm_training.pth.tar", Family::kTimm}, ExportCase{"hf", Family::kHuggingFace},
        ExportCase{"google.npz", Family::kHuggingFace}),
    [](const auto& info) {
      std::string name = info.param.from + std::string("_to_") + to_string(info.param.to);
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

class Sharded : public ::testing::Test {
 protected:
  /// timm's fixture for Hugging Face, in files of `most` bytes of tensors.
  void export_with(int64_t most, const std::string& dtype = "F32") {
    export_model(std::move(open_fixture("timm.safetensors").tensors), before.description,
                 Family::kHuggingFace, hub, {.dtype = dtype, .max_shard_bytes = most});
  }
  /// Names of its tensor files and index, sorted.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(hub)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  const TemporaryFolder folder{"tessera-weights"};
  const fs::path hub = folder.path() / "hub";
  const Model before = open_fixture("timm.safetensors");
};

TEST_F(Sharded, FilesWithAnIndexAreReadBackBitwise) {
  const auto wanted = read_all(*before.tensors);
  export_with(8'000);
  const auto names = files();
  ASSERT_GE(names.size(), 4U);
  const size_t shards = names.size() - 1;
  EXPECT_EQ(names.front(), concat("model-00001-of-0000", shards, ".safetensors"));
  EXPECT_EQ(names.back(), "model.safetensors.index.json");
  const auto index = nlohmann::json::parse(read_file(hub / names.back()));
  int64_t total = 0;
  size_t tensors = 0;
  for (size_t i = 0; i < shards; ++i) {
    int64_t bytes = 0;
    const formats::SafetensorsReader reader(hub / names[i]);
    for (const auto& entry : reader.entries()) {
      EXPECT_EQ(index["weight_map"][entry.name], names[i]) << entry.name;
      bytes += checkpoint::count_of(entry.shape) * 4;
      ++tensors;
    }
    EXPECT_LE(bytes, 8'000) << names[i];
    total += bytes;
  }
  EXPECT_EQ(index["weight_map"].size(), tensors);
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(read_all(*open_model(hub).tensors), wanted);
  // Half numbers need half the files.
  export_with(8'000, "BF16");
  EXPECT_LT(files().size(), names.size());
}

TEST_F(Sharded, ATensorLargerThanAFileHasOneOfItsOwn) {
  export_with(1);  // every tensor is
  const size_t tensors = files().size() - 1;
  EXPECT_GT(tensors, 32U);
  for (const auto& name : files()) {
    if (name.ends_with(".json")) continue;
    EXPECT_EQ(formats::SafetensorsReader(hub / name).entries().size(), 1U) << name;
  }
  EXPECT_EQ(read_all(*open_model(hub).tensors), read_all(*before.tensors));
  using Shards = std::vector<std::vector<size_t>>;
  EXPECT_EQ(split_into_shards({4, 4, 20, 4, 8}, 10), (Shards{{2}, {0, 1}, {3}, {4}}));
  EXPECT_EQ(split_into_shards({4, 6, 10}, 10), (Shards{{0, 1}, {2}}));
  EXPECT_EQ(split_into_shards({11, 12}, 10), (Shards{{0}, {1}}));
  EXPECT_EQ(split_into_shards({}, 10), (Shards{{}}));
}

TEST_F(Sharded, NothingOfAnEarlierExportIsLeft) {
  export_with(kUsualShardBytes);
  EXPECT_EQ(files(), std::vector<std::string>({"model.safetensors"}));
  export_with(8'000);
  const auto many = files();
  EXPECT_EQ(std::count(many.begin(), many.end(), "model.safetensors"), 0);
  export_with(20'000);
  EXPECT_LT(files().size(), many.size());
  EXPECT_EQ(read_all(*open_model(hub).tensors), read_all(*before.tensors));
  export_with(kUsualShardBytes);
  EXPECT_EQ(files(), std::vector<std::string>({"model.safetensors"}));
}

TEST(ShardSizes, AreReadAsHuggingFaceWritesThem) {
  EXPECT_EQ(shard_bytes_of("5GB"), kUsualShardBytes);
  EXPECT_EQ(shard_bytes_of(" 500 mb "), 500'000'000);
  EXPECT_EQ(shard_bytes_of("1.5KB"), 1'500);
  EXPECT_EQ(shard_bytes_of("2TB"), 2'000'000'000'000);
  EXPECT_EQ(shard_bytes_of("4096"), 4'096);
  for (const char* wrong : {"", "GB", "0", "-1GB", "0.1", "5GiB", "nan", "inf", "1e30", "5 G B", "five"}) {
    EXPECT_EQ(error_text([&] { shard_bytes_of(wrong); }),
              concat("[weights.shard_size] the size of a file is \"", wrong,
                     "\": expected 5GB, 500MB or a number of bytes"));
  }
}

TEST(ExportDtypes, HalfNumbersAreTheNearest) {
  const TemporaryFolder folder("tessera-weights");
  const Model before = open_fixture("google.npz");
  const auto wanted = read_all(*before.tensors);
  for (const auto& [dtype, error] : {std::pair("F16", 0x1p-11), std::pair("BF16", 0x1p-8)}) {
    const fs::path output = folder.path() / "half.npz";
    // Through timm's file: what is exported need not lie in a checkpoint.
    auto source = std::shared_ptr<checkpoint::TensorSource>(std::move(open_fixture("google.npz").tensors));
    export_model(source, before.description, Family::kGoogle, output, {.dtype = dtype});
    for (const auto& [name, numbers] : read_all(*open_model(output).tensors)) {
      for (size_t i = 0; i < numbers.size(); ++i)
        ASSERT_NEAR(numbers[i], wanted.at(name)[i], error * std::abs(wanted.at(name)[i]) + 1e-7) << name;
    }
  }
  EXPECT_EQ(error_text([&] {
              export_model(std::move(open_fixture("google.npz").tensors), before.description, Family::kGoogle,
                           folder.path() / "x.npz", {.dtype = "I8"});
            }),
            "[checkpoint.consolidate] cannot convert weights to the dtype \"I8\": expected F32, BF16 or F16");
}

TEST(ExportErrors, ModelsThatAFamilyHasNotAreNamed) {
  const auto error = [](const auto& mapping, const auto& change) {
    arch::VitConfig config = small_config();
    change(config);
    return error_text([&] { mapping(config); });
  };
  const auto registers = [](arch::VitConfig& c) { c.registers = 4; };
  const auto average = [](arch::VitConfig& c) { c.pool = arch::Pool::kAverage; };
  const auto tanh = [](arch::VitConfig& c) { c.head = arch::Head::kTanh; };
  const auto scale = [](arch::VitConfig& c) { c.layer_scale = 1; };
  EXPECT_EQ(error(torchvision_mapping, registers),
            "[weights.export] the model has register tokens, which torchvision does not support; export to "
            "timm instead");
  EXPECT_EQ(error(torchvision_mapping, average),
            "[weights.export] the model has another pool than the class token, which torchvision does not "
            "support; export to timm instead");
  EXPECT_EQ(error(hugging_face_mapping, tanh),
            "[weights.export] the model has a head of two layers, which transformers' ViT does not support; "
            "export to timm instead");
  EXPECT_EQ(error(hugging_face_mapping, scale),
            "[weights.export] the model has LayerScale, which transformers' ViT does not support; export to "
            "timm instead");
  EXPECT_EQ(error(google_mapping, average),
            "[weights.export] the model has a norm after the average of the patches, which the original ViT "
            "does not support; export to timm instead");
  const auto taught = [](arch::VitConfig& c) { c.distillation_token = true; };
  EXPECT_EQ(error(google_mapping, taught),
            "[weights.export] the model has a distillation token, which the original ViT does not support; "
            "export to timm instead");
  EXPECT_EQ(error(torchvision_mapping, taught),
            "[weights.export] the model has a distillation token, which torchvision does not support; export "
            "to timm instead");
  EXPECT_EQ(error(big_vision_mapping, registers),
            "[weights.export] the model has register tokens, which big_vision does not support; export to "
            "timm instead");
  EXPECT_EQ(error_text([] { family_of("torchvison"); }),
            "[weights.family] unknown family of weights \"torchvison\": expected one of timm, torchvision, "
            "hf, npz, big_vision; did you mean \"torchvision\"?");
}

}  // namespace
}  // namespace tessera::weights
