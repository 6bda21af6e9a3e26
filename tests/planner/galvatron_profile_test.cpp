// SPDX-License-Identifier: Apache-2.0
// Keys and values are of files in PKU-DAIR/Hetu-Galvatron and its forks, or are chosen to be computed by
// hand.
#include "tessera/planner/galvatron_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/planner/step_time.h"
#include "tests/error_text.h"

namespace tessera::planner {
namespace {

/// 17 tokens; all blocks alike.
arch::VitConfig vit_of_17_tokens() {
  arch::VitConfig config;
  config.image_size = 32;
  config.patch_size = 8;
  config.width = 64;
  config.depth = 3;
  config.heads = 4;
  config.mlp_width = 256;
  config.pool = arch::Pool::kAverage;
  return config;
}

GalvatronProfileFiles sample_files() {
  GalvatronProfileFiles files;
  files.hardware = {{"hardware/allreduce_bandwidth_1nodes_4gpus_per_node.json",
                     R"({"allreduce_size_4_consec_1": 100, "allreduce_size_2_consec_1": 50,
                         "allreduce_size_2_consec_0": 80.5})"},
                    {"p2p_bandwidth_1nodes_4gpus_per_node.json", R"({"pp_size_2": 20, "pp_size_4": 40})"},
                    {"overlap_coefficient.json", R"({"overlap_coe": 1.25})"}};
  files.computation = {"configs/computation_profiling_bf16_vit_all.json",
                       R"({"layertype_0_bsz2_seq17": 3, "layertype_other_bsz2_seq17": 4,
                           "layertype_0_bsz8_seq17": 2.5, "layertype_other_bsz8_seq17": 0})"};
  files.model = vit_of_17_tokens();
  return files;
}

Profile imported(const GalvatronProfileFiles& files) { return import_galvatron_profile(files).profile; }

UnitTimes unit_of(const Profile& profile, const std::string& kind, int64_t tensor, int64_t batch,
                  plan::Recompute recompute = plan::Recompute::kNone) {
  for (const UnitTimes& unit : profile.units) {
    if (unit.kind == kind && unit.tensor == tensor && unit.batch == batch && unit.recompute == recompute)
      return unit;
  }
  ADD_FAILURE() << kind << " with tensor " << tensor << " and batch " << batch << " is missing";
  return {};
}

LinkTimes link_of(const Profile& profile, const std::string& operation, const std::string& kind,
                  int64_t ranks) {
  for (const LinkTimes& link : profile.links) {
    if (link.operation == operation && link.kind == kind && link.ranks == ranks) return link;
  }
  ADD_FAILURE() << operation << " between " << ranks << ' ' << kind << " ranks is missing";
  return {};
}

double seconds(const LinkTimes& link, double bytes) { return link.latency + bytes / link.bytes_per_second; }

/// ms of an all-reduce, as in docs/from_galvatron.md: each rank sends (s - 1) / s of it, twice.
double all_reduce_ms(const Profile& profile, const std::string& kind, int64_t ranks, double megabytes) {
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  const double sent = megabytes * 1048576 * share;
  return 1e3 * (seconds(link_of(profile, "reduce_scatter", kind, ranks), sent) +
                seconds(link_of(profile, "all_gather", kind, ranks), sent));
}

void expect_notes(const std::vector<std::string>& found, const std::vector<std::string>& expected) {
  EXPECT_EQ(found, expected);
}

// ---- import

TEST(ImportGalvatronProfile, UnitsHaveSecondsOfTheirImages) {
  const Profile profile = imported(sample_files());
  // 2 images x 3 ms; twice and three times as long backward.
  const UnitTimes block = unit_of(profile, "blocks.0", 1, 2);
  EXPECT_DOUBLE_EQ(block.forward, 6e-3);
  EXPECT_DOUBLE_EQ(block.backward, 12e-3);
  EXPECT_DOUBLE_EQ(unit_of(profile, "blocks.0", 1, 2, plan::Recompute::kAll).backward, 18e-3);
  EXPECT_DOUBLE_EQ(unit_of(profile, "blocks.0", 1, 8).forward, 20e-3);
  // Two ranks share 4 images: as long as one rank with 2.
  for (const int64_t tensor : {2, 4}) {
    EXPECT_DOUBLE_EQ(unit_of(profile, "blocks.0", tensor, 2).forward, 6e-3);
    EXPECT_DOUBLE_EQ(unit_of(profile, "blocks.0", tensor, 2, plan::Recompute::kKeepSums).backward, 18e-3);
  }
  // Half of 2 images x 4 ms each; 0 ms are no time of a profile.
  for (const char* kind : {"stem", "head"}) {
    EXPECT_DOUBLE_EQ(unit_of(profile, kind, 1, 2).forward, 4e-3);
    EXPECT_DOUBLE_EQ(unit_of(profile, kind, 1, 2).backward, 8e-3);
    EXPECT_DOUBLE_EQ(unit_of(profile, kind, 1, 8).forward, 1e-9);
  }
  EXPECT_EQ(profile.units.size(), 2u * (1 + 2 + 2 * 3 + 1));
  EXPECT_EQ(profile.model, arch::ModelConfig(vit_of_17_tokens()));
}

TEST(ImportGalvatronProfile, BandwidthsAreOfBytesThatARankSends) {
  const Profile profile = imported(sample_files());
  // 8 MB between 4 ranks: each sends 2 x 3/4 x 8 MB at 100 MB/ms.
  EXPECT_NEAR(all_reduce_ms(profile, "adjacent", 4, 8), 0.12, 1e-12);
  EXPECT_NEAR(all_reduce_ms(profile, "adjacent", 2, 8), 8. / 50, 1e-12);
  EXPECT_NEAR(all_reduce_ms(profile, "strided", 2, 8), 8. / 80.5, 1e-12);
  EXPECT_DOUBLE_EQ(link_of(profile, "exchange", "strided", 2).bytes_per_second, 80.5 * 1048576e3);
  // Stages of 4 ranks each: 2 stages are 2 ranks apart, 4 stages 1.
  EXPECT_DOUBLE_EQ(link_of(profile, "send", "strided", 2).bytes_per_second, 20 * 1048576e3);
  EXPECT_DOUBLE_EQ(link_of(profile, "send", "adjacent", 4).bytes_per_second, 40 * 1048576e3);
  EXPECT_EQ(profile.links.size(), 3u * 3 + 2);
  for (const LinkTimes& link : profile.links) EXPECT_EQ(link.transport, "NCCL");
  EXPECT_EQ(profile.compute_slowdown, 1.25);
  EXPECT_EQ(profile.link_slowdown, 1.25);
  EXPECT_EQ(profile.provenance.compute, "bf16");
  EXPECT_EQ(profile.provenance.ranks_of_host, 4);
  EXPECT_EQ(profile.provenance.build, "");
}

TEST(ImportGalvatronProfile, GroupsThatLeaveANodeAreOfHosts) {
  // Galvatron's own file of two nodes.
  GalvatronProfileFiles files = sample_files();
  files.hardware = {{"allreduce_bandwidth_2nodes_8gpus_per_node.json",
                     R"({"allreduce_size_16_consec_1": 45.6885, "allreduce_size_8_consec_1": 153.454,
                         "allreduce_size_8_consec_0": 32.111, "allreduce_size_4_consec_1": 152.376,
                         "allreduce_size_4_consec_0": 19.2516, "allreduce_size_2_consec_1": 151.229,
                         "allreduce_size_2_consec_0": 9.28218})"},
                    {"p2p_bandwidth_2nodes_8gpus_per_node.json",
                     R"({"pp_size_2": 7.96595, "pp_size_4": 8.8167, "pp_size_16": 8.81364})"}};
  const Profile profile = imported(files);
  EXPECT_NEAR(all_reduce_ms(profile, "hosts", 16, 1), 2. * 15 / 16 / 45.6885, 1e-12);
  EXPECT_NEAR(all_reduce_ms(profile, "adjacent", 8, 1), 2. * 7 / 8 / 153.454, 1e-12);
  EXPECT_NEAR(all_reduce_ms(profile, "hosts", 8, 1), 2. * 7 / 8 / 32.111, 1e-12);
  EXPECT_NEAR(all_reduce_ms(profile, "hosts", 2, 1), 1 / 9.28218, 1e-12);
  EXPECT_DOUBLE_EQ(link_of(profile, "send", "hosts", 2).bytes_per_second, 7.96595 * 1048576e3);
  EXPECT_DOUBLE_EQ(link_of(profile, "send", "hosts", 16).bytes_per_second, 8.81364 * 1048576e3);
  EXPECT_EQ(profile.provenance.ranks_of_host, 8);
}

TEST(ImportGalvatronProfile, OfTwoKindsOfGroupsOverHostsTheSlowerCounts) {
  GalvatronProfileFiles files = sample_files();
  files.hardware = {{"a_4nodes_2gpus_per_node.json",
                     R"({"allreduce_size_8_consec_1": 9, "allreduce_size_4_consec_1": 8,
                         "allreduce_size_4_consec_0": 6, "allreduce_size_2_consec_1": 90,
                         "allreduce_size_2_consec_0": 3, "pp_size_2": 5, "overlap_coe": 1})"}};
  const ImportedProfile found = import_galvatron_profile(files);
  EXPECT_NEAR(all_reduce_ms(found.profile, "hosts", 4, 1), 2. * 3 / 4 / 6, 1e-12);
  EXPECT_NEAR(all_reduce_ms(found.profile, "adjacent", 2, 1), 1. / 90, 1e-12);
  EXPECT_EQ(std::ranges::count(found.notes,
                               "assumed: all groups of 4 ranks of several hosts are as slow as the slower of "
                               "consec_0 and consec_1"),
            1);
}

TEST(ImportGalvatronProfile, TimesOfMessagesGiveLatencyOfExchanges) {
  // Of an all-reduce of M MB between 4 ranks, twice 0.02 ms and twice 3/4 M MB at 60 MB/ms.
  GalvatronProfileFiles files = sample_files();
  nlohmann::json times;
  for (const int64_t megabytes : {1, 2, 64, 1024}) {
    times[concat("allreduce_size_4_", megabytes, "MB_time")] =
        2 * (0.02 + 0.75 * static_cast<double>(megabytes) / 60);
    times[concat("all2all_size_4_", megabytes, "MB_time")] = 1;
  }
  files.hardware.push_back({"sp_time_1nodes_4gpus_per_node.json", times.dump()});
  const ImportedProfile found = import_galvatron_profile(files);
  const LinkTimes link = link_of(found.profile, "exchange", "adjacent", 4);
  EXPECT_NEAR(link.latency, 2e-5, 1e-12);
  EXPECT_NEAR(link.bytes_per_second / 1048576e3, 60, 1e-6);
  EXPECT_EQ(link.samples.front(), (LinkTimes::Sample{786'432, (0.02 + 0.75 / 60) / 1e3}));
  EXPECT_EQ(link_of(found.profile, "all_gather", "adjacent", 4).latency, 0);
  EXPECT_EQ(
      std::ranges::count(found.notes,
                         "not used: all2all keys (4); there is no sequence parallelism over attention heads"),
      1);
}

TEST(ImportGalvatronProfile, BlockThatComputesLessTakesItsShareOfFlops) {
  GalvatronProfileFiles files = sample_files();
  arch::VitConfig model = vit_of_17_tokens();
  model.pool = arch::Pool::kClassToken;
  files.model = model;
  const Profile profile = imported(files);
  const std::vector<double> flops = arch::unit_flops(model);
  ASSERT_LT(flops[3], flops[1]);
  EXPECT_DOUBLE_EQ(unit_of(profile, "blocks.2", 1, 2).forward, 6e-3 * flops[3] / flops[1]);
  EXPECT_DOUBLE_EQ(unit_of(profile, "blocks.0", 1, 2).forward, 6e-3);
}

TEST(ImportGalvatronProfile, EverySpellingOfAKeyIsRead) {
  GalvatronProfileFiles files = sample_files();
  const auto with = [&](const std::string& text) {
    files.computation.text = text;
    return unit_of(imported(files), "blocks.0", 1, 4).forward;
  };
  EXPECT_DOUBLE_EQ(
      with(R"({"layernum[2]_bsz4_seq17": 30, "layernum[4]_bsz4_seq17": 40, "layertype_0_bsz4_seq17": 1.25,
                            "layertype_other_bsz4_seq17": 5})"),
      5e-3);
  EXPECT_DOUBLE_EQ(with(R"({"layernum2_bsz4_seq17": 30, "layertype_0_bsz4_seq17": 1.5,
                            "layertype_other_0_bsz4_seq17": 5})"),
                   6e-3);
  EXPECT_DOUBLE_EQ(with(R"({"layertype_0_bsz4": 1.75, "layertype_other_bsz4": 5})"), 7e-3);
  EXPECT_DOUBLE_EQ(with(R"({"layertype_0_bsz4_seq17": 2, "layertype_other_bsz4_seq17": 5,
                            "layertype_0_bsz4_seq257": 9, "layertype_other_bsz4_seq257": 9})"),
                   8e-3);
}

TEST(ImportGalvatronProfile, ViTHugeTakesTheTimeOfItsFile) {
  // Release 2.4 ships for ViT-Huge in bf16, 8 samples: 0.20539 ms a layer and 0.6581 ms for the rest.
  arch::VitConfig model = arch::vit_config("H/16");
  model.pool = arch::Pool::kAverage;  // all blocks compute as much
  GalvatronProfileFiles files = sample_files();
  files.model = model;
  files.computation.text = R"({"layertype_0_bsz8_seq197": 0.20539, "layertype_other_bsz8_seq197": 0.6581})";
  files.memory = {{"memory_profiling_bf16_vit-huge_all.json",
                   R"({"1_1_8": {"layernum1_bsz8_seq197_rank0_ms": 400},
                       "layertype_0": {"197": {"parameter_size": 75.094,
                                               "tp_activation_per_bsz_dict": {"1": 9.209, "checkpoint": 0.438}}},
                       "other_memory_pp_off": {"197": {}}, "other_memory_pp_on_first": {}})"}};
  StepQuestion question;
  question.plan = plan::uniform_plan(model, 1, plan::Level::kReplicate, false, 1);
  question.batch = 8;
  const StepTime time = predict_step(imported(files), question);
  EXPECT_NEAR(time.seconds, 1e-3 * 8 * 3 * (32 * 0.20539 + 0.6581), 1e-9);
  // 12 x 1280^2 + 13 x 1280 values are 75.06 MB; those of ViT-Large are not.
  files.memory->text = R"({"layertype_0": {"197": {"parameter_size": 48.05}}})";
  EXPECT_EQ(
      error_text([&] { imported(files); }),
      "[planner.import_galvatron_profile] \"parameter_size\" of layertype_0 is 48.05 MB "
      "(memory_profiling_bf16_vit-huge_all.json): expected about 75.06 MB, a block of the recipe's model in "
      "fp32; import the files of a model of the recipe's size");
}

TEST(ImportGalvatronProfile, NotesNameEverythingThatIsAssumed) {
  GalvatronProfileFiles files = sample_files();
  files.hardware = {
      {"bandwidth.json", R"({"allreduce_size_4_consec_1": 100, "allreduce_size_2_consec_1": 50})"}};
  files.computation = {"times.json", R"({"layertype_0_bsz2": 3, "layertype_other_bsz2": 0})"};
  files.compute = "fp16";
  const ImportedProfile found = import_galvatron_profile(files);
  expect_notes(found.notes,
               {"assumed: one host of 4 ranks, since the names of the hardware files do not end in "
                "NUMBERnodes_NUMBERgpus_per_node.json",
                "assumed: stem and head each take half of layertype_other",
                "assumed: a backward pass takes as long as two forward passes, with recompute three",
                "assumed: the ranks of a tensor group share its computation evenly and without loss",
                "assumed: stem and head take 1 ns, since layertype_other of batch 2 is 0",
                "assumed: keys without a sequence length are of 17 tokens",
                "assumed: a MB is 2^20 bytes, as in Galvatron's scripts (nccl-tests: 10^6)",
                "assumed: messages have no latency",
                "not in the files: allreduce_size_2_consec_0; predictions take the nearest group and say so, "
                "or name what "
                "they lack",
                "not in the files: pp_size_P; steps of a pipeline cannot be predicted",
                "not in the files: overlap_coe; assumed 1: passes and messages do not slow each other",
                "not in the files: times of updates, of adding gradients, of data and of other work of a "
                "step; assumed 0 s",
                "not in the files: machine, build and number of threads; predictions do not compare them"});
  EXPECT_EQ(found.profile.provenance.compute, "fp16");
  EXPECT_EQ(found.profile.compute_slowdown, 1);
  files.ranks_of_host = 2;
  EXPECT_EQ(imported(files).provenance.ranks_of_host, 2);
  EXPECT_NEAR(all_reduce_ms(imported(files), "hosts", 4, 1), 2. * 3 / 4 / 100, 1e-12);
}

// ---- refused files

std::string hardware_error(const std::string& text) {
  GalvatronProfileFiles files = sample_files();
  files.hardware = {{"h.json", text}};
  const std::string error = error_text([&] { imported(files); });
  const std::string begin = "[planner.import_galvatron_profile] ";
  return error.starts_with(begin) ? error.substr(begin.size()) : error;
}

std::string computation_error(const std::string& text) {
  GalvatronProfileFiles files = sample_files();
  files.computation = {"c_bf16.json", text};
  const std::string error = error_text([&] { imported(files); });
  const std::string begin = "[planner.import_galvatron_profile] ";
  return error.starts_with(begin) ? error.substr(begin.size()) : error;
}

TEST(ImportGalvatronProfile, ErrorsOfHardware) {
  constexpr const char* kRange = "\"allreduce_size_2_consec_1\" is ";
  for (const char* value : {"0", "-5", "1e+300", "\"50\"", "null", "[50]"}) {
    EXPECT_EQ(hardware_error(concat("{\"allreduce_size_2_consec_1\": ", value, "}")),
              concat(kRange, value, " (h.json): expected a number between 1e-09 and 1e+09"));
  }
  EXPECT_EQ(hardware_error("{\"allreduce_size_2_consec_1\": NaN}"), "not valid JSON at byte 31 (h.json)");
  EXPECT_EQ(hardware_error("{\"allreduce_size_2_consec_1\": 5"), "not valid JSON at byte 32 (h.json)");
  EXPECT_EQ(hardware_error("[]"), "the file is [] (h.json): expected an object");
  EXPECT_EQ(hardware_error(concat("{\"pp_size_2\": ", std::string(1'000'000, '['))),
            "JSON is nested too deeply (h.json): expected at most 64 levels");
  EXPECT_EQ(hardware_error("{\"pp_size_2\": 5}"),
            "the hardware files have no allreduce_size_S_consec_C: expected bandwidths of all-reduces; add "
            "allreduce_bandwidth_*.json");
  constexpr const char* kKnown =
      "expected allreduce_size_S_consec_C, pp_size_P, overlap_coe or allreduce_size_S_MMB_time";
  for (const char* key : {"allreduce_size_2", "allreduce_size_2_consec_2", "allreduce_size_02_consec_1",
                          "allreduce_size_x_consec_1", "allreduce_size_9999999999_consec_1", "overlap", ""}) {
    EXPECT_EQ(hardware_error(concat("{\"", key, "\": 5}")),
              concat("\"", key, "\" is no known key (h.json): ", kKnown));
  }
  for (const char* key : {"1_8_1", "pp_deg_2"}) {
    EXPECT_EQ(hardware_error(concat("{\"", key, "\": 0.2}")),
              concat("\"", key, "\" is no known key (h.json): ", kKnown,
                     "; release 1 wrote ms/MB; from release 2 on it is MB/ms: profile with a newer release"));
  }
  EXPECT_EQ(hardware_error("{\"allreduce_size_1_consec_1\": 5}"),
            "\"allreduce_size_1_consec_1\" has the number 1 (h.json): expected at least 2");
  EXPECT_EQ(hardware_error("{\"overlap_coe\": 0.9}"),
            "\"overlap_coe\" is 0.9 (h.json): expected a number between 1 and 1000");
  EXPECT_EQ(hardware_error("{\"allreduce_size_4_consec_1\": 5, \"allreduce_size_3_consec_1\": 5}"),
            "the hardware files have allreduce_size_3_consec_1: expected sizes that divide the 4 ranks");
  EXPECT_EQ(hardware_error("{\"allreduce_size_4_consec_1\": 5, \"pp_size_8\": 5}"),
            "the hardware files have pp_size_8: expected sizes that divide the 4 ranks");
  EXPECT_EQ(
      hardware_error("{\"allreduce_size_4_consec_0\": 5}"),
      "the hardware files have allreduce_size_4_consec_0: expected consec_1 for the group of all ranks");
}

TEST(ImportGalvatronProfile, ErrorsOfSeveralFiles) {
  GalvatronProfileFiles files = sample_files();
  files.hardware.push_back({"more.json", R"({"pp_size_2": 20})"});
  EXPECT_EQ(error_text([&] { imported(files); }),
            "[planner.import_galvatron_profile] \"pp_size_2\" is in p2p_bandwidth_1nodes_4gpus_per_node.json "
            "as well "
            "(more.json): expected each key once");
  files = sample_files();
  files.hardware[1].name = "p2p_bandwidth_2nodes_4gpus_per_node.json";
  EXPECT_EQ(error_text([&] { imported(files); }),
            "[planner.import_galvatron_profile] the file's name says 2 nodes of 4 GPUs "
            "(p2p_bandwidth_2nodes_4gpus_per_node.json): expected 1 nodes of 4 GPUs, as the files before");
  files = sample_files();
  files.ranks_of_host = 2;
  EXPECT_EQ(error_text([&] { imported(files); }),
            "[planner.import_galvatron_profile] the number of ranks of a host is 2: expected 4, as the names "
            "of the "
            "hardware files say");
  for (GalvatronFile& file : files.hardware) file.name = "h.json";
  files.ranks_of_host = 3;
  EXPECT_EQ(
      error_text([&] { imported(files); }),
      "[planner.import_galvatron_profile] the number of ranks of a host is 3: expected a divisor of the 4 "
      "ranks");
  files = sample_files();
  files.computation.name = "times.json";
  EXPECT_EQ(
      error_text([&] { imported(files); }),
      "[planner.import_galvatron_profile] the dtype of the times is not known (times.json): expected fp32, "
      "bf16 or fp16 in the file's name, as in computation_profiling_bf16_vit.json; or set precision.compute");
  files = sample_files();
  files.model = arch::ResNetConfig{};
  EXPECT_EQ(
      error_text([&] { imported(files); }),
      "[planner.import_galvatron_profile] the model is a resnet, whose blocks differ: expected a vit or a "
      "resmlp, since Galvatron has one time for all blocks");
}

TEST(ImportGalvatronProfile, ErrorsOfComputation) {
  EXPECT_EQ(computation_error("{}"),
            "the file has no layertype_0_bszB_seq17 (c_bf16.json): expected the time of a layer");
  EXPECT_EQ(
      computation_error(R"({"layertype_0_bsz8_seq4096": 11.2, "layertype_other_bsz8_seq4096": 27.3})"),
      "the layers have sequence length 4096 (c_bf16.json): expected 17, the tokens of the recipe's model; "
      "import the files of a model of the recipe's kind");
  EXPECT_EQ(
      computation_error(R"({"layertype_0_bsz8_seq17": 1, "layertype_1_bsz8_seq17": 1})"),
      "\"layertype_1_bsz8_seq17\" is of a second type of layers (c_bf16.json): expected layers of one type, "
      "since all blocks of the model are alike; import the files of a model of the recipe's kind");
  EXPECT_EQ(computation_error(R"({"layertype_0_bsz8_seq17": 1})"),
            "the file has no layertype_other_bsz8_seq17 (c_bf16.json): expected times of layertype_0 and "
            "layertype_other for each batch");
  EXPECT_EQ(computation_error(R"({"layertype_0_bsz8_seq17": 1, "layertype_other_bsz8_seq17": 1,
                                  "layertype_other_bsz4_seq17": 1})"),
            "the file has no layertype_0_bsz4_seq17 (c_bf16.json): expected times of layertype_0 and "
            "layertype_other for each batch");
  EXPECT_EQ(computation_error(R"({"layertype_0_bsz8_seq17": 1, "layertype_0_bsz8": 1})"),
            "\"layertype_0_bsz8\" has a second time of batch 8 (c_bf16.json): expected one");
  EXPECT_EQ(computation_error(R"({"layertype_0_bsz0_seq17": 1})"),
            "\"layertype_0_bsz0_seq17\" has the number 0 (c_bf16.json): expected at least 1");
  EXPECT_EQ(computation_error(R"({"layertype_0_bsz8_seq17": 0})"),
            "\"layertype_0_bsz8_seq17\" is 0 (c_bf16.json): expected a number between 1e-09 and 1e+09");
  EXPECT_EQ(computation_error(R"({"layertype_other_bsz8_seq17": -1})"),
            "\"layertype_other_bsz8_seq17\" is -1 (c_bf16.json): expected a number between 0 and 1e+09");
  // A model with experts.
  EXPECT_EQ(computation_error(R"({"layertype_0_bsz1_seq17_mlp": 6.7})"),
            "\"layertype_0_bsz1_seq17_mlp\" is no known key (c_bf16.json): expected layertype_0_bszB_seqS, "
            "layertype_other_bszB_seqS or layernumL_bszB_seqS");
}

TEST(ImportGalvatronProfile, ErrorsOfMemory) {
  const auto error = [](const std::string& text) {
    GalvatronProfileFiles files = sample_files();
    files.memory = {{"m.json", text}};
    return error_text([&] { imported(files); });
  };
  const std::string begin = "[planner.import_galvatron_profile] ";
  EXPECT_EQ(error("{}"), begin + "the file has no layertype_0 (m.json): expected the memory of a layer");
  EXPECT_EQ(error(R"({"layertype_0": 7})"),
            begin + "\"layertype_0\" has 7 (m.json): expected an object with \"parameter_size\"");
  EXPECT_EQ(error(R"({"layertype_0": {"17": {"parameter_size": 0}}})"),
            begin + "\"parameter_size\" is 0 (m.json): expected a number above 0");
  EXPECT_EQ(
      error(R"({"layertype_0": {"parameter_size": 0.19}, "layertype_1": {}})"),
      begin +
          "\"layertype_1\" is of a second type of layers (m.json): expected layers of one type, since all "
          "blocks of the model are alike; import the files of a model of the recipe's kind");
  EXPECT_EQ(error(R"({"layertype_0_sp": {"17": {"parameter_size": 0.19}}, "other": {}})"),
            begin +
                "\"other\" is no known key (m.json): expected layertype_0, other_memory_pp_off, "
                "other_memory_pp_on_first or other_memory_pp_on_last");
  // 12 x 64^2 + 13 x 64 values of 4 bytes are 0.19 MB.
  EXPECT_EQ(error(R"({"layertype_0_sp": {"17": {"parameter_size": 0.19}}})"), "no error");
}

// ---- export

/// Of two ranks of one host, as tessera plan profile measures it.
Profile measured() {
  Profile profile;
  profile.provenance = {"host", "a CPU", "CPU", "a build", "2026-11-27T08:00:00Z", "fp32", 1, 4, 3};
  profile.model = vit_of_17_tokens();
  const auto add = [&](const char* kind, int64_t tensor, int64_t batch, double forward) {
    profile.units.push_back(
        {.kind = kind, .tensor = tensor, .batch = batch, .forward = forward, .backward = 1.75 * forward});
  };
  for (const int64_t batch : {1, 4}) {
    const auto images = static_cast<double>(batch);
    add("stem", 1, batch, 1e-3 * images);
    add("blocks.0", 1, batch, 1e-4 + 2e-3 * images);
    add("blocks.0", 2, batch, 1e-4 + 2.5e-3 * images);
    add("head", 1, batch, 3e-3 * images);
  }
  for (const auto& [kind, ranks] :
       {std::pair("adjacent", 2), std::pair("strided", 2), std::pair("adjacent", 4)}) {
    const double latency = 1e-5 * ranks;
    profile.links.push_back({"all_gather", kind, "shared memory", ranks, latency, 3e9, 0, {}});
    profile.links.push_back({"reduce_scatter", kind, "shared memory", ranks, latency, 1.5e9, 0, {}});
    profile.links.push_back({"exchange", kind, "shared memory", ranks, latency, 2e9, 0, {}});
  }
  profile.links.push_back({"send", "strided", "TCP", 2, 5e-5, 1e9, 0, {}});
  profile.compute_slowdown = 1.25;
  profile.link_slowdown = 1.5;
  profile.step_seconds = 1e-3;
  return profile;
}

GalvatronProfileFiles files_of(const ExportedProfile& exported, const arch::ModelConfig& model) {
  GalvatronProfileFiles files;
  for (const GalvatronFile& file : exported.files)
    (file.name.starts_with("computation") ? files.computation : files.hardware.emplace_back()) = file;
  files.model = model;
  return files;
}

TEST(ExportGalvatronProfile, HasGalvatronsNamesKeysAndUnits) {
  const ExportedProfile exported = export_galvatron_profile(measured(), "vit-tiny");
  std::map<std::string, nlohmann::json> found;
  for (const GalvatronFile& file : exported.files) found[file.name] = nlohmann::json::parse(file.text);
  ASSERT_EQ(found.size(), 5u);
  // 32 MB: each of 2 ranks sends 16 MB by all-gather, and as much by reduce-scatter.
  const double sent = 16 * 1048576., ms = 1e3 * (4e-5 + sent / 3e9 + sent / 1.5e9);
  const auto& bandwidth = found.at("allreduce_bandwidth_1nodes_4gpus_per_node.json");
  EXPECT_NEAR(bandwidth.at("allreduce_size_2_consec_1").get<double>(), 32 / ms, 1e-9);
  EXPECT_NEAR(bandwidth.at("allreduce_size_2_consec_0").get<double>(), 32 / ms, 1e-9);
  EXPECT_TRUE(bandwidth.contains("allreduce_size_4_consec_1"));
  EXPECT_EQ(bandwidth.size(), 3u);
  EXPECT_NEAR(found.at("p2p_bandwidth_1nodes_4gpus_per_node.json").at("pp_size_2").get<double>(),
              32 / (1e3 * (5e-5 + 2 * sent / 1e9)), 1e-9);
  const auto& times = found.at("sp_time_1nodes_4gpus_per_node.json");
  EXPECT_EQ(times.size(), 2u * 11);
  EXPECT_NEAR(times.at("allreduce_size_4_8MB_time").get<double>(), 2e3 * (4e-5 + 6 * 1048576. / 2e9), 1e-9);
  EXPECT_EQ(found.at("overlap_coefficient.json"), nlohmann::json({{"overlap_coe", 1.5}}));
  const auto& layers = found.at("computation_profiling_fp32_vit-tiny_all.json");
  EXPECT_EQ(layers.size(), 4u);
  EXPECT_NEAR(layers.at("layertype_0_bsz4_seq17").get<double>(), 2 + 0.1 / 4, 1e-12);
  EXPECT_NEAR(layers.at("layertype_other_bsz1_seq17").get<double>(), 4, 1e-12);
  expect_notes(
      exported.notes,
      {"not written: exchanges between 2 strided ranks: Galvatron has no key for them",
       "not written: the slowdown 1.25: overlap_coe is the larger one, 1.5",
       "not written: backward passes of 1.75 forward passes: Galvatron counts 2",
       "not written: stem and head by themselves: layertype_other is both",
       "not written: times with tensor parallelism: Galvatron divides the layer's time by the degree",
       "not written: memory_profiling_*.json: Galvatron measures memory; predictions here compute it from "
       "the model",
       "not written: times of updates, of adding gradients, of data and of other work of a step: Galvatron "
       "has none"});
}

TEST(ExportGalvatronProfile, ExchangesInPiecesAreNotWritten) {
  Profile profile = measured();
  const ExportedProfile without = export_galvatron_profile(profile, "vit");
  for (LinkTimes& link : profile.links) {
    if (link.operation == "exchange") link.in_pieces = {{4, {{1000, 1, 0.5}, {2000, 2, 1}}}};
  }
  const ExportedProfile with = export_galvatron_profile(profile, "vit");
  EXPECT_EQ(
      std::ranges::count(with.notes, "not written: exchanges in pieces: Galvatron's exchanges hide nothing"),
      1);
  EXPECT_EQ(with.notes.size(), without.notes.size() + 1);
  for (size_t i = 0; i < with.files.size(); ++i) EXPECT_EQ(with.files[i].text, without.files[i].text);
  Profile peers = measured();
  for (UnitTimes& unit : peers.units) {
    if (unit.tensor > 1) unit.peers = PeerTimes{"TCP", 4, true, 1, 1};
  }
  EXPECT_EQ(export_galvatron_profile(peers, "vit").notes, with.notes);
}

TEST(ExportGalvatronProfile, LagAndBusyRanksAreNotWritten) {
  for (double Profile::*times :
       {&Profile::unit_lag, &Profile::micro_batch_lag, &Profile::busy_ranks_slowdown}) {
    Profile profile = measured();
    profile.*times += 0.125;
    EXPECT_EQ(std::ranges::count(
                  export_galvatron_profile(profile, "vit").notes,
                  "not written: waiting for the slowest rank, and passes while other ranks are idle: "
                  "Galvatron has neither"),
              1);
  }
}

TEST(ExportGalvatronProfile, RoundTripKeepsWhatBothHold) {
  const Profile before = measured();
  const Profile after = imported(files_of(export_galvatron_profile(before, "vit"), before.model));
  for (const int64_t batch : {1, 4}) {
    EXPECT_NEAR(unit_of(after, "blocks.0", 1, batch).forward, unit_of(before, "blocks.0", 1, batch).forward,
                1e-15);
    EXPECT_NEAR(unit_of(after, "stem", 1, batch).forward + unit_of(after, "head", 1, batch).forward,
                unit_of(before, "stem", 1, batch).forward + unit_of(before, "head", 1, batch).forward, 1e-15);
  }
  for (const auto& [kind, ranks] :
       {std::pair("adjacent", 2), std::pair("strided", 2), std::pair("adjacent", 4)})
    EXPECT_NEAR(all_reduce_ms(after, kind, ranks, 32), all_reduce_ms(before, kind, ranks, 32), 1e-9);
  for (const int64_t ranks : {2, 4}) {
    const LinkTimes found = link_of(after, "exchange", "adjacent", ranks);
    const LinkTimes expected = link_of(before, "exchange", "adjacent", ranks);
    EXPECT_NEAR(found.latency, expected.latency, 1e-12);
    EXPECT_NEAR(found.bytes_per_second / expected.bytes_per_second, 1, 1e-9);
  }
  const double bytes = 32 * 1048576.;
  EXPECT_NEAR(seconds(link_of(after, "send", "strided", 2), bytes),
              seconds(link_of(before, "send", "strided", 2), bytes), 1e-12);
  EXPECT_EQ(after.compute_slowdown, 1.5);
  EXPECT_EQ(after.provenance.compute, "fp32");
  EXPECT_EQ(after.provenance.ranks_of_host, 4);
}

/// The numbers of all files by key.
std::map<std::string, double> numbers_of(const GalvatronProfileFiles& files) {
  std::map<std::string, double> numbers;
  std::vector<GalvatronFile> all = files.hardware;
  all.push_back(files.computation);
  for (const GalvatronFile& file : all) {
    const auto json = nlohmann::json::parse(file.text);
    for (const auto& [key, value] : json.items()) numbers[key] = value.get<double>();
  }
  return numbers;
}

TEST(ExportGalvatronProfile, FilesComeBackWithTheirValues) {
  for (const char* shape : {"1nodes_4gpus_per_node", "2nodes_2gpus_per_node", "4nodes_1gpus_per_node"}) {
    GalvatronProfileFiles files = sample_files();
    for (size_t i = 0; i < 2; ++i) files.hardware[i].name = concat("x_", shape, ".json");
    // On 4 nodes of 1 GPU, neighbours and others are alike.
    if (std::string(shape) == "4nodes_1gpus_per_node")
      files.hardware[0].text = R"({"allreduce_size_4_consec_1": 100, "allreduce_size_2_consec_1": 50,
                                   "allreduce_size_2_consec_0": 50})";
    files.computation.text = R"({"layertype_0_bsz2_seq17": 3, "layertype_other_bsz2_seq17": 4})";
    const ExportedProfile exported = export_galvatron_profile(imported(files), "vit");
    EXPECT_EQ(exported.files.front().name, concat("allreduce_bandwidth_", shape, ".json"));
    const auto found = numbers_of(files_of(exported, files.model));
    for (const auto& [key, value] : numbers_of(files)) {
      ASSERT_TRUE(found.contains(key)) << key << " of " << shape;
      EXPECT_NEAR(found.at(key) / value, 1, 1e-12) << key << " of " << shape;
    }
  }
}

TEST(ExportGalvatronProfile, NotesNameWhatIsMissing) {
  Profile profile = measured();
  std::erase_if(profile.links, [](const LinkTimes& link) { return link.operation != "exchange"; });
  const ExportedProfile exported = export_galvatron_profile(profile, "vit");
  EXPECT_EQ(exported.files.size(), 3u);
  for (const char* note :
       {"not written: allreduce_size_4_consec_1, allreduce_size_2_consec_1, allreduce_size_2_consec_0: not "
        "in the "
        "profile; Galvatron's search asks for them",
        "not written: allreduce_bandwidth_1nodes_4gpus_per_node.json: the profile has no such messages",
        "not written: p2p_bandwidth_1nodes_4gpus_per_node.json: the profile has no such messages"})
    EXPECT_EQ(std::ranges::count(exported.notes, note), 1) << note;
}

TEST(ExportGalvatronProfile, OfSeveralTransportsTheOneOfPredictionsIsWritten) {
  Profile profile = measured();
  std::erase_if(profile.links, [](const LinkTimes& link) { return link.operation != "send"; });
  profile.links.insert(profile.links.begin(), {"send", "strided", "NCCL", 2, 0, 8 * 1048576e3, 0, {}});
  const auto found = numbers_of(files_of(export_galvatron_profile(profile, "vit"), profile.model));
  EXPECT_NEAR(found.at("pp_size_2"), 8, 1e-12);
}

TEST(ExportGalvatronProfile, RefusesWhatGalvatronCannotHold) {
  Profile profile = measured();
  std::erase_if(profile.units, [](const UnitTimes& unit) { return unit.kind == "head"; });
  EXPECT_EQ(
      error_text([&] { export_galvatron_profile(profile, "vit"); }),
      "[planner.export_galvatron_profile] the profile has no times of stem, blocks.0 and head for the same "
      "images: expected times with tensor 1 and recompute none; run tessera plan profile again");
  profile.model = arch::ResNetConfig{};
  EXPECT_EQ(
      error_text([&] { export_galvatron_profile(profile, "resnet"); }),
      "[planner.export_galvatron_profile] the model is a resnet, whose blocks differ: expected a vit or a "
      "resmlp, since Galvatron has one time for all blocks");
}

}  // namespace
}  // namespace tessera::planner
