// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/profile_json.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/error_text.h"

namespace tessera::planner {
namespace {

arch::VitConfig small_vit() {
  arch::VitConfig config;
  config.image_size = 32;
  config.patch_size = 8;
  config.width = 64;
  config.depth = 3;
  config.heads = 4;
  config.mlp_width = 256;
  return config;
}

Profile sample() {
  Profile profile;
  profile.provenance = {.host = "node \"7\"",
                        .processor = "a CPU",
                        .device = "CPU",
                        .build = "0.1, LibTorch 2.11",
                        .date = "2026-11-27T08:00:00Z",
                        .compute = "bf16",
                        .threads = 2,
                        .ranks_of_host = 4,
                        .rounds = 9,
                        .slowed = 0.25};
  profile.model = small_vit();
  profile.units = {{.kind = "stem", .batch = 4, .forward = 0.1, .backward = 0.2, .spread = 0.01},
                   {.kind = "blocks.0",
                    .tensor = 2,
                    .batch = 8,
                    .recompute = plan::Recompute::kKeepSums,
                    .forward = 1.0 / 3,
                    .backward = 2e-7,
                    .peers = PeerTimes{"TCP", 3, true, 1.0 / 7, 0}}};
  profile.links = {{.operation = "all_gather",
                    .kind = "strided",
                    .transport = "shared memory",
                    .ranks = 4,
                    .latency = 1e-5,
                    .bytes_per_second = 3e9,
                    .spread = 0.02,
                    .samples = {{4096, 1.1e-5}, {1 << 20, 3e-4}}},
                   {.operation = "exchange",
                    .kind = "adjacent",
                    .transport = "TCP",
                    .bytes_per_second = 1e9,
                    .samples = {{4096, 2e-5}},
                    .in_pieces = {{2, {{4096, 3e-5, 1e-5}, {8192, 4e-5, 0}}},
                                  {4, {{4096, 5e-5, 1.5e-5}, {8192, 6e-5, 2e-5}}}}}};
  profile.compute_slowdown = 1.25;
  profile.link_slowdown = 1.5;
  profile.busy_ranks_slowdown = 1.125;
  profile.optimizer_seconds = 1e-9;
  profile.widen_seconds = 1.5e-10;
  profile.accumulate_seconds = 2e-10;
  profile.add_sum_seconds = 2.5e-10;
  profile.unit_lag = 0.05;
  profile.micro_batch_lag = 0.02;
  profile.data_seconds = 3e-3;
  profile.step_seconds = 4e-3;
  return profile;
}

TEST(UnitKinds, BlocksOfAVitAreOneKindButForALastOneThatComputesLess) {
  EXPECT_EQ(unit_kinds(small_vit()),
            (std::vector<std::string>{"stem", "blocks.0", "blocks.0", "blocks.2", "head"}));
  arch::VitConfig average = small_vit();  // its head reads every token
  average.pool = arch::Pool::kAverage;
  EXPECT_EQ(unit_kinds(average),
            (std::vector<std::string>{"stem", "blocks.0", "blocks.0", "blocks.0", "head"}));
}

TEST(UnitKinds, BlocksOfAResNetDifferByStageAndFirstOfStage) {
  arch::ResNetConfig config;
  config.blocks = {3, 2};
  EXPECT_EQ(unit_kinds(config), (std::vector<std::string>{"stem", "layer1.0", "layer1.1", "layer1.1",
                                                          "layer2.0", "layer2.1", "head"}));
}

TEST(ProfileJson, RoundTripKeepsEveryValue) {
  const Profile profile = sample();
  EXPECT_EQ(profile_from_json(to_json(profile), "p.json"), profile);
}

TEST(ProfileJson, SomeMeasurementsAreOptional) {
  Profile without_pieces = sample(), without_peers = sample(), without_slowdown = sample();
  without_slowdown.busy_ranks_slowdown = 1;
  without_pieces.links[1].in_pieces.clear();
  without_peers.units[1].peers.reset();
  for (const auto& [key, profile] : {std::pair{"in_pieces", without_pieces},
                                     {"peers", without_peers},
                                     {"busy_ranks_slowdown", without_slowdown}}) {
    const std::string text = to_json(profile);
    EXPECT_EQ(text.find(key), std::string::npos);
    EXPECT_EQ(profile_from_json(text, "p.json"), profile);
  }
}

TEST(ProfileJson, MeasuredProfilesHaveNoKeysOfAssumedOnes) {
  const std::string text = to_json(sample());
  for (const char* key : {"assumed", "memory_bytes", "in_host"}) EXPECT_EQ(text.find(key), std::string::npos);
  EXPECT_FALSE(profile_from_json(text, "p.json").provenance.is_assumed());
}

TEST(ProfileJson, KeysOfAssumedProfilesAreOptional) {
  Profile profile = sample();
  profile.provenance.assumed = "a data sheet";
  profile.provenance.memory_bytes = 80'000'000'000;
  profile.links.push_back(profile.links[0]);
  profile.links.push_back(profile.links[0]);
  profile.links[2].kind = profile.links[3].kind = "hosts";
  profile.links[3].in_host = 2;
  EXPECT_EQ(profile_from_json(to_json(profile), "p.json"), profile);
  std::string text = to_json(profile);
  text.erase(text.find("      \"in_host\": 1,\n"), 21);
  EXPECT_EQ(profile_from_json(text, "p.json"), profile) << "1 without the key";
}

TEST(ProfileJson, KeysOfProfilesOfGpusAreOptional) {
  Profile profile = sample();
  EXPECT_EQ(to_json(profile).find("assumed_links"), std::string::npos);
  EXPECT_EQ(to_json(profile).find("keeps_activations"), std::string::npos);
  EXPECT_EQ(to_json(profile).find("replayed"), std::string::npos);
  profile.provenance.device = "NVIDIA H100";
  profile.provenance.memory_bytes = 80'000'000'000;
  profile.provenance.assumed_links = "abacus: a data sheet";
  profile.provenance.keeps_activations = true;
  profile.units[1].replayed = 0.75;
  EXPECT_EQ(profile_from_json(to_json(profile), "test"), profile);
}

TEST(ProfileJson, EveryFamilySurvivesWithNoDefaultValue) {
  arch::VitConfig vit = small_vit();
  vit.channels = 1;
  vit.classes = 21;
  vit.registers = 2;
  vit.class_token = false;
  vit.pool = arch::Pool::kAverage;
  vit.norm_before_pool = true;
  vit.position_embedding = arch::PositionEmbedding::kSinCos2d;
  vit.head = arch::Head::kTanh;
  vit.qk_norm = true;
  vit.layer_scale = 1e-5;
  vit.drop_path = 0.1;
  vit.dropout = 0.2;
  vit.norm_epsilon = 1e-5;
  vit.head_bias = -6.9;
  vit.head_zero_init = true;
  vit.initial_values = arch::InitialValues::kBigVision;
  arch::VitConfig deit = small_vit();
  deit.distillation_token = true;
  arch::ResNetConfig resnet;
  resnet.image_size = 64;
  resnet.channels = 1;
  resnet.classes = 7;
  resnet.bottleneck = false;
  resnet.blocks = {2, 3};
  resnet.base_width = 32;
  resnet.zero_init_residual = true;
  resnet.batch_norm_sync = true;
  resnet.batch_norm_momentum = 0.2;
  resnet.batch_norm_epsilon = 1e-4;
  arch::ResMlpConfig mlp;
  mlp.image_size = 64;
  mlp.patch_size = 8;
  mlp.channels = 1;
  mlp.width = 32;
  mlp.depth = 2;
  mlp.mlp_width = 96;
  mlp.classes = 5;
  mlp.layer_scale = 1e-4;
  mlp.drop_path = 0.1;
  for (const arch::ModelConfig& model :
       {arch::ModelConfig(vit), arch::ModelConfig(deit), arch::ModelConfig(resnet), arch::ModelConfig(mlp)}) {
    Profile profile;
    profile.provenance.compute = "fp32";
    profile.model = model;
    EXPECT_EQ(profile_from_json(to_json(profile), "p.json"), profile) << arch::describe(model);
  }
}

/// The error of the sample with `from` replaced by `to`, without its prefix.
std::string error_with(const std::string& from, const std::string& to) {
  std::string text = to_json(sample());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at == std::string::npos) return "";
  text.replace(at, from.size(), to);
  const std::string error = error_text([&] { profile_from_json(text, "p.json"); });
  const std::string prefix = "[planner.profile_from_json] ";
  EXPECT_TRUE(error.starts_with(prefix)) << error;
  return error.substr(std::min(prefix.size(), error.size()));
}

TEST(ProfileJson, ErrorsOfTheFile) {
  EXPECT_EQ(error_with("{", "["), "not valid JSON at byte 13 (p.json)");
  EXPECT_EQ(error_text([] { profile_from_json("[1]", "p.json"); }),
            "[planner.profile_from_json] a profile is [1] (p.json): expected an object");
  EXPECT_EQ(error_with("tessera.profile", "tessera.plan"),
            "\"format\" is \"tessera.plan\" (p.json): expected \"tessera.profile\"");
  EXPECT_EQ(error_with("\"version\": 1", "\"version\": 2"),
            "\"version\" is 2 (p.json): expected an integer between 1 and 1");
  EXPECT_EQ(error_with("\"version\": 1,", ""), "a profile has no \"version\" (p.json)");
  EXPECT_EQ(error_with("\"data_seconds\"", "\"data_second\""),
            "a profile has the unknown key \"data_second\" (p.json); did you mean \"data_seconds\"?");
  EXPECT_EQ(error_with("\"step_seconds\": 0.004,", ""), "a profile has no \"step_seconds\" (p.json)");
  EXPECT_EQ(error_with("\"step_seconds\": 0.004", "\"step_seconds\": -1"),
            "\"step_seconds\" is -1 (p.json): expected a number of at least 0");
  EXPECT_EQ(error_with("\"step_seconds\": 0.004", "\"step_seconds\": 1e999"),
            "a number is beyond the range of a double (p.json)");
  EXPECT_EQ(error_with("\"step_seconds\": 0.004", "\"step_seconds\": 1e300"),
            "\"step_seconds\" is 1e+300 (p.json): expected at most 1e+09");
  EXPECT_EQ(error_with("\"compute_slowdown\": 1.25", "\"compute_slowdown\": 0.5"),
            "\"compute_slowdown\" is 0.5 (p.json): expected a number of at least 1");
  EXPECT_EQ(error_with("\"slowed\": 0.25", "\"slowed\": 1.5"),
            "\"slowed\" is 1.5 (p.json): expected a share, 0 to 1");
  EXPECT_EQ(error_with("\"compute_slowdown\": 1.25", "\"compute_slowdown\": 1e308"),
            "\"compute_slowdown\" is 1e+308 (p.json): expected at most 100");
  EXPECT_EQ(error_with("\"busy_ranks_slowdown\": 1.125", "\"busy_ranks_slowdown\": 0.9"),
            "\"busy_ranks_slowdown\" is 0.9 (p.json): expected a number of at least 1");
  EXPECT_EQ(error_with("\"unit_lag\": 0.05", "\"unit_lag\": -0.05"),
            "\"unit_lag\" is -0.05 (p.json): expected a number of at least 0");
  EXPECT_EQ(error_with("\"micro_batch_lag\": 0.02", "\"micro_batch_lag\": 101"),
            "\"micro_batch_lag\" is 101 (p.json): expected at most 100");
  EXPECT_EQ(error_with("\"threads\": 2", "\"threads\": 0"),
            "\"threads\" is 0 (p.json): expected an integer between 1 and 16777216");
  EXPECT_EQ(error_with("\"threads\": 2", "\"assumed\": \"\", \"threads\": 2"),
            "\"assumed\" is empty (p.json): expected the sources of the constants");
  EXPECT_EQ(error_with("\"threads\": 2", "\"memory_bytes\": 0, \"threads\": 2"),
            "\"memory_bytes\" is 0 (p.json): expected an integer between 1 and 1125899906842624");
  EXPECT_EQ(
      error_with("\"kind\": \"strided\"", "\"in_host\": 2, \"kind\": \"strided\""),
      "a link of kind \"strided\" has \"in_host\" (p.json, entry 1 of \"links\"): expected kind \"hosts\"");
  EXPECT_EQ(error_with("\"kind\": \"strided\"", "\"in_host\": 5, \"kind\": \"hosts\""),
            "\"in_host\" is 5 (p.json, entry 1 of \"links\"): expected an integer between 1 and 4");
  EXPECT_EQ(error_with("\"compute\": \"bf16\"", "\"compute\": \"int8\""),
            "\"compute\" is \"int8\" (p.json): expected one of fp32, bf16, fp16");
}

TEST(ProfileJson, ErrorsOfTheModel) {
  EXPECT_EQ(error_with("\"family\": \"vit\"", "\"family\": \"lstm\""),
            "\"family\" is \"lstm\" (p.json): expected one of vit, resnet, resmlp");
  EXPECT_EQ(error_with("\"heads\": 4,", ""), "a model has no \"heads\" (p.json)");
  EXPECT_EQ(error_with("\"heads\": 4", "\"heads\": \"4\""),
            "\"heads\" is \"4\" (p.json): expected an integer between 0 and 2147483647");
  EXPECT_EQ(error_with("\"pool\": \"cls\"", "\"pool\": \"max\""),
            "\"pool\" is \"max\" (p.json): expected one of cls, gap, map");
  std::string text = to_json(sample());
  text.replace(text.find("\"depth\": 3"), 10, "\"depth\": 0");
  EXPECT_EQ(error_text([&] { profile_from_json(text, "p.json"); }),
            "[arch.check] depth is 0 (p.json): expected 1 to 4096");
}

TEST(ProfileJson, DeepNestingIsRefused) {
  const auto nested = [](size_t levels) {  // inside of the outer object
    return concat("{\"format\": ", std::string(levels - 1, '['), std::string(levels - 1, ']'), '}');
  };
  EXPECT_EQ(error_text([&] { profile_from_json(nested(2'000'000), "p.json"); }),
            "[planner.profile_from_json] JSON is nested too deeply (p.json): expected at most 64 levels");
  EXPECT_EQ(error_text([&] { profile_from_json(nested(64), "p.json"); }),
            "[planner.profile_from_json] a profile has no \"version\" (p.json)");
}

TEST(ProfileJson, ErrorsOfUnits) {
  EXPECT_EQ(error_with("\"kind\": \"stem\"", "\"kind\": \"blocks.1\""),
            "\"kind\" is \"blocks.1\" (p.json, entry 1 of \"units\"): expected one of stem, blocks.0, "
            "blocks.2, head");
  EXPECT_EQ(error_with("\"forward\": 0.1", "\"forward\": 0"),
            "\"forward\" is 0 (p.json, entry 1 of \"units\"): expected a number above 0");
  EXPECT_EQ(error_with("\"backward\": 2e-07", "\"backward\": null"),
            "\"backward\" is null (p.json, entry 2 of \"units\"): expected a number above 0");
  EXPECT_EQ(error_with("\"batch\": 4,", ""), "a unit has no \"batch\" (p.json, entry 1 of \"units\")");
  EXPECT_EQ(error_with("\"batch\": 4", "\"batch\": 0"),
            "\"batch\" is 0 (p.json, entry 1 of \"units\"): expected an integer between 1 and 1073741824");
  EXPECT_EQ(error_with("\"recompute\": \"keep_sums\"", "\"recompute\": \"some\""),
            "\"recompute\" is \"some\" (p.json, entry 2 of \"units\"): expected one of none, all, keep_sums");
  Profile empty;
  empty.provenance.compute = "fp32";
  std::string text = to_json(empty);
  text.replace(text.find("\"units\": []"), 11, "\"units\": 7");
  EXPECT_EQ(error_text([&] { profile_from_json(text, "p.json"); }),
            "[planner.profile_from_json] \"units\" is 7 (p.json): expected a list");
}

TEST(ProfileJson, ErrorsOfPeers) {
  EXPECT_EQ(error_with("\"keep_gathered\": true,", ""),
            "\"peers\" has no \"keep_gathered\" (p.json, entry 2 of \"units\")");
  EXPECT_EQ(error_with("\"pieces\": 3", "\"pieces\": 0"),
            "\"pieces\" is 0 (p.json, entry 2 of \"units\"): expected an integer between 1 and 1073741824");
  EXPECT_EQ(error_with("\"tensor\": 2", "\"tensor\": 1"),
            "a unit of tensor 1 has \"peers\" (p.json, entry 2 of \"units\"): expected tensor 2 or more");
}

TEST(ProfileJson, ErrorsOfLinks) {
  EXPECT_EQ(error_with("\"bytes_per_second\": 3000000000.0", "\"bytes_per_second\": 0"),
            "\"bytes_per_second\" is 0 (p.json, entry 1 of \"links\"): expected a number above 0");
  EXPECT_EQ(error_with("\"ranks\": 4", "\"ranks\": 1"),
            "\"ranks\" is 1 (p.json, entry 1 of \"links\"): expected an integer between 2 and 16777216");
  EXPECT_EQ(error_with("\"kind\": \"strided\"", "\"kind\": \"near\""),
            "\"kind\" is \"near\" (p.json, entry 1 of \"links\"): expected one of adjacent, strided, hosts");
  EXPECT_EQ(error_with("\"transport\": \"shared memory\"", "\"transport\": \"RDMA\""),
            "\"transport\" is \"RDMA\" (p.json, entry 1 of \"links\"): expected one of shared memory, TCP, "
            "NCCL");
  EXPECT_EQ(error_with("\"operation\": \"all_gather\"", "\"operation\": \"gather\""),
            "\"operation\" is \"gather\" (p.json, entry 1 of \"links\"): expected one of all_gather, "
            "reduce_scatter, exchange, send");
  EXPECT_EQ(error_with("\"bytes\": 4096,", ""), "a sample has no \"bytes\" (p.json, entry 1 of \"links\")");
  EXPECT_EQ(
      error_with("\"operation\": \"exchange\"", "\"operation\": \"send\""),
      "a link of operation \"send\" has \"in_pieces\" (p.json, entry 2 of \"links\"): expected operation "
      "\"exchange\"");
  EXPECT_EQ(error_with("\"pieces\": 4", "\"pieces\": 2"),
            "\"pieces\" is 2 (p.json, entry 2 of \"links\"): expected an integer between 3 and 1073741824");
  EXPECT_EQ(error_with("\"exposed\": 0.0", "\"exposed\": -1"),
            "\"exposed\" is -1 (p.json, entry 2 of \"links\"): expected a number of at least 0");
  Profile one = sample();
  one.links[1].in_pieces[1].samples.pop_back();
  EXPECT_EQ(error_text([&] { profile_from_json(to_json(one), "p.json"); }),
            "[planner.profile_from_json] \"in_pieces\" has 1 samples of 4 pieces (p.json, entry 2 of "
            "\"links\"): expected at least 2");
}

TEST(ProfileJson, TwoEntriesForOneMeasurementAreRefused) {
  Profile units = sample();
  units.units.push_back(units.units[1]);
  units.units.back().forward = 1;
  EXPECT_EQ(error_text([&] { profile_from_json(to_json(units), "p.json"); }),
            "[planner.profile_from_json] kind \"blocks.0\", tensor 2, batch 8, recompute \"keep_sums\" is "
            "there twice (p.json, entry 3 of \"units\"): expected each once");
  Profile links = sample();
  links.links.push_back(links.links[0]);
  EXPECT_EQ(error_text([&] { profile_from_json(to_json(links), "p.json"); }),
            "[planner.profile_from_json] operation \"all_gather\", kind \"strided\", transport \"shared "
            "memory\", ranks 4 is there twice (p.json, entry 3 of \"links\"): expected each once");
}

}  // namespace
}  // namespace tessera::planner
