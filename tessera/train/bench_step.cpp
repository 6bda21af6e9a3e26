// SPDX-License-Identifier: Apache-2.0
// `tessera bench step`: how fast a whole training step is, and where its time goes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/median.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/base/warn.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/device.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/loop/loop.h"
#include "tessera/ops/cpu/peak_rate.h"
#include "tessera/ops/linear.h"
#include "tessera/profile/kernel_times.h"
#include "tessera/profile/operation_times.h"
#include "tessera/profile/over_ranks.h"
#include "tessera/shard/tensor_memory.h"
#include "tessera/train/commands.h"
#include "tessera/train/step_requests.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

/// One image of noise, decoded already: what is measured is the step, not a decoder.
class NoiseImageSource final : public data::Source {
 public:
  NoiseImageSource(const arch::ModelConfig& model, int64_t size) : size_(size), classes_(model.classes()) {
    const int64_t side = model.image_size(), channels = model.channels();
    image_ = {side, side, channels, {}};
    image_.pixels.resize(static_cast<size_t>(side * side * channels));
    for (size_t i = 0; i < image_.pixels.size(); ++i) {
      image_.pixels[i] = static_cast<uint8_t>(random_key(1, static_cast<uint64_t>(i)));
    }
    for (int64_t c = 0; c < classes_; ++c) names_.push_back(std::to_string(c));
  }
  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return index % classes_; }
  data::Stored load(int64_t) const override { return {{}, image_}; }
  std::string sample_name(int64_t index) const override { return concat("picture ", index); }
  const std::vector<std::string>& classes() const override { return names_; }

 private:
  int64_t size_, classes_;
  data::Image image_;
  std::vector<std::string> names_;
};

/// Operations a second of one product forward, a ViT's widest: [tokens of the batch, width] times
/// [MLP width, width], by all threads of this rank. Of other models: ViT-B's with 2,048 tokens.
class WidestProduct {
 public:
  WidestProduct(const arch::ModelConfig& model, int64_t batch, at::ScalarType dtype, at::Device device)
      : device_(device) {
    const auto* vit = std::get_if<arch::VitConfig>(&model.of);
    const int64_t rows = vit ? batch * vit->tokens() : 2048, in = vit ? vit->width : 768,
                  out = vit ? vit->mlp_width : 3072;
    const auto options = at::TensorOptions().dtype(dtype).device(device);
    x_ = at::randn({rows, in}, options);
    weight_ = at::randn({out, in}, options);
    bias_ = at::zeros({out}, options);
    operations_ = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  }
  double rate() const {
    const at::NoGradGuard no_gradients;
    const int turns = device_.is_cpu() ? 4 : 64;  // a GPU should be busy for longer than it takes to say so
    const auto start = Clock::now();
    for (int i = 0; i < turns; ++i) ops::linear(x_, weight_, bias_);
    eager::wait_for(device_);
    return turns * operations_ / seconds_since(start);
  }

 private:
  at::Device device_;
  at::Tensor x_, weight_, bias_;
  double operations_;
};

/// What the rounds found, of this rank.
struct Rounds {
  std::vector<double> seconds, product_rates;
  std::optional<double> cpus_of_others;  // a share of the CPUs; ranks of several hosts do not know
  std::optional<int64_t> replays;        // of recorded passes; none: the run records nothing
  Json seconds_by_kind;                  // of a step, from steps whose operations were counted
  Json kernels;                          // calls and seconds of each in a step; null where not asked for
};

class StepBench {
 public:
  // (More than 5 parameters: references that the benchmark holds.)
  StepBench(const BenchStepJob& job, const plan::Plan& plan, const launch::Ranks& ranks, mesh::Mesh& mesh,
            at::Device device, int64_t threads)
      : job_(job),
        ranks_(ranks),
        mesh_(mesh),
        device_(device),
        state_(eager::assemble(job.recipe, plan, mesh, /*with_optimizer=*/true, device)),
        backend_(*state_, mesh),
        world_(mesh),
        sizes_(eager::batch_sizes(job.recipe, state_->plan)),
        source_(job.recipe.model, sizes_.batch),
        loader_(source_, transform(job.recipe), loader_options(threads), 0) {}

  void use(const eager::DeviceChoices& choices) { eager::use_choices(*state_, choices); }
  bool keeps_activations() const { return state_->context.keeps_activations; }

  Rounds run() {
    // Memory is found, pages are there; passes are recorded, if they are.
    for (int i = 0; i < (state_->recorded ? 6 : 2); ++i) step();
    const WidestProduct product(job_.recipe.model, sizes_.per_rank,
                                eager::resolve_dtype(job_.recipe.precision.compute, device_), device_);
    product.rate();
    Rounds rounds;
    const int64_t replays = state_->recorded ? state_->recorded->replays() : 0;
    launch::OthersOnCpus others;
    for (int64_t round = 0; round < job_.rounds; ++round) {
      mesh_.world().barrier("bench");
      const auto start = Clock::now();
      step();
      rounds.seconds.push_back(seconds_since(start));
      rounds.product_rates.push_back(product.rate());
    }
    others.stop();
    // Ranks of other hosts have other CPUs.
    if (ranks_.local_world == ranks_.world)
      rounds.cpus_of_others = others.share(profile::sum_over_ranks(others.own(), mesh_.world(), "CPU time"));
    if (state_->recorded) {  // replays have no operations to count
      rounds.replays = state_->recorded->replays() - replays;
      state_->recorded = nullptr;
      step();  // takes the memory that recording gave back
    }
    rounds.seconds_by_kind = count_operations();
    if (!job_.kernels.empty()) rounds.kernels = profile_kernels();
    return rounds;
  }

  /// Collective.
  void serve(const MemoryBefore& before) {
    serve_step_requests(
        job_.requests, [this] { step(); }, before, mesh_);
  }

  double flops_per_image() const { return arch::training_flops(job_.recipe.model); }
  const recipe::BatchSizes& sizes() const { return sizes_; }
  int64_t stages() const { return state_->plan.stages; }

 private:
  static data::TransformOptions transform(const recipe::Recipe& recipe) {
    data::TransformOptions options = recipe.data.transform;
    options.train_crop = data::TrainCrop::kNone;
    options.flip = false;
    return options;
  }
  data::LoaderOptions loader_options(int64_t threads) const {
    data::LoaderOptions options;
    options.rank = ranks_.rank;
    options.world = ranks_.world;
    options.batch = sizes_.batch;
    options.accumulation = sizes_.accumulation;
    if (job_.requests.empty()) {
      options.workers = device_.is_cpu() ? 0 : 2;  // beside a GPU's launches, as in a training
    } else {
      Log quiet(false);
      const data::LoaderOptions trained = eager::loader_options(job_.recipe, ranks_, threads, quiet);
      options.workers = trained.workers;
      options.worker_cores = trained.worker_cores;
      options.prefetch = trained.prefetch;
    }
    eager::load_for(state_->plan, &options);
    eager::deliver_for(device_, &options);
    return options;
  }
  void step() {
    loop::train_step(*state_, backend_, world_, loader_, sizes_.accumulation, /*lr=*/1e-6,
                     /*stop_requested=*/{});
    eager::wait_for(device_);
  }

  Json count_operations() {
    constexpr int kSteps = 2;
    const profile::OperationTimes operations(device_);
    loader_.take_wait_seconds();
    const double waited = mesh_.wait_seconds();
    const auto start = Clock::now();
    for (int i = 0; i < kSteps; ++i) step();
    double rest = seconds_since(start);
    Json json;
    const auto add = [&](std::string_view kind, double seconds) {
      json[std::string(kind)] = seconds / kSteps;
      rest -= seconds;
    };
    const profile::OperationTimes::Seconds seconds = operations.seconds();
    for (size_t kind = 0; kind < seconds.size(); ++kind) {
      add(profile::name_of(static_cast<profile::OperationKind>(kind)), seconds[kind]);
    }
    add("waiting_for_ranks", mesh_.wait_seconds() - waited);
    add("data", loader_.take_wait_seconds());
    add("the_rest", std::max(0.0, rest));
    return json;
  }

  Json profile_kernels() {
    constexpr int kSteps = 2;
    Json json = Json::array();
    for (const profile::KernelTime& kernel : profile::kernel_times(device_, [&] {
           for (int i = 0; i < kSteps; ++i) step();
         })) {
      json.push_back({{"name", kernel.name},
                      {"calls", static_cast<double>(kernel.calls) / kSteps},
                      {"seconds", kernel.seconds / kSteps}});
    }
    return json;
  }

  const BenchStepJob& job_;
  const launch::Ranks& ranks_;
  mesh::Mesh& mesh_;
  at::Device device_;
  std::unique_ptr<eager::TrainState> state_;
  eager::Backend backend_;
  eager::MeshWorld world_;
  recipe::BatchSizes sizes_;
  NoiseImageSource source_;
  data::TrainLoader loader_;
};

struct BenchPlace {
  const launch::Ranks& ranks;
  at::Device device;
  int64_t threads;  // of a rank
};

/// Bytes, of the rank that has most.
struct PeakBytes {
  double host, device;
};

Json report_of(const BenchStepJob& job, const StepBench& bench, const Rounds& rounds, const BenchPlace& place,
               const PeakBytes& peaks) {
  const auto& [ranks, device, threads] = place;
  const recipe::Recipe& recipe = job.recipe;
  const double seconds = median(rounds.seconds), images = static_cast<double>(bench.sizes().batch);
  const double rate = images / seconds * bench.flops_per_image();  // of all ranks
  const at::ScalarType dtype = eager::resolve_dtype(recipe.precision.compute, device);
  const double cores = static_cast<double>(threads * ranks.world);
  const double products = median(rounds.product_rates) * static_cast<double>(ranks.world);
  // fp16 has no kernels of ours, and so no peak that they were compared with; a GPU has no measured one.
  const bool has_peak = dtype != at::kHalf && device.is_cpu();
  const double peak = !has_peak ? 0 : ops::peak_rate(dtype == at::kBFloat16, 0.1) * cores;
  Json json = {{"model", job.model},
               {"device", eager::describe_device(device)},
               {"dtype", eager::dtype_name(dtype)},
               {"ranks", ranks.world},
               {"threads_per_rank", threads},
               {"stages", bench.stages()},
               {"batch_per_rank", bench.sizes().per_rank},
               {"micro_batches", bench.sizes().accumulation},
               {"global_batch", bench.sizes().batch},
               {"level", plan::to_string(recipe.shard.level)},
               {"recompute", recipe.shard.recompute},
               {"keeps_activations", bench.keeps_activations()},
               {"step_seconds", seconds},
               {"step_seconds_all", rounds.seconds},
               {"images_per_second", images / seconds},
               {"tflops", rate / 1e12},
               {"gemm_tflops", products / 1e12},
               {"share_of_gemm_rate", rate / products},
               {"seconds_by_kind", rounds.seconds_by_kind},
               {"peak_rss_bytes", peaks.host},
               {"tessera", concat(build_info().version, " (", build_info().commit, ")")}};
  if (rounds.cpus_of_others) json["cpus_of_others"] = *rounds.cpus_of_others;
  if (peaks.device > 0) json["device_peak_bytes"] = peaks.device;
  if (rounds.replays) json["replayed_passes"] = *rounds.replays;
  if (peak > 0) {
    json["peak_tflops"] = peak / 1e12;
    json["share_of_peak"] = rate / peak;
  }
  return json;
}

/// "batch 64 = 2 ranks a stage x 4 x 8 micro-batches in 2 stages".
std::string batch_text(const Json& json) {
  const auto whole = [&](const char* name) { return json.at(name).get<int64_t>(); };
  const int64_t stages = whole("stages"), micro_batches = whole("micro_batches");
  return concat("batch ", whole("global_batch"), " = ", whole("ranks") / stages,
                stages > 1 ? " ranks a stage x " : " ranks x ", whole("batch_per_rank"),
                micro_batches > 1 ? concat(" x ", micro_batches, " micro-batches") : "",
                stages > 1 ? concat(" in ", stages, " stages") : "");
}

void print(const Json& json) {
  const auto number = [&](const char* name) { return json.at(name).get<double>(); };
  std::printf("%s on %s, %s, %s, %s%s%s\n", json.at("model").get<std::string>().c_str(),
              json.at("device").get<std::string>().c_str(), batch_text(json).c_str(),
              json.at("dtype").get<std::string>().c_str(), json.at("level").get<std::string>().c_str(),
              json.at("recompute").get<bool>() ? ", recompute" : "",
              json.at("keeps_activations").get<bool>() ? ", outputs of norms and GELUs kept" : "");
  std::printf("%-30s %10.2f images/s, %.3f s a step\n", "whole step", number("images_per_second"),
              number("step_seconds"));
  std::printf("%-30s %10.3f TFLOP/s: %.0f %% of the widest product's %.3f", "work", number("tflops"),
              100 * number("share_of_gemm_rate"), number("gemm_tflops"));
  if (json.contains("peak_tflops")) {
    std::printf(", %.0f %% of the registers' %.3f", 100 * number("share_of_peak"), number("peak_tflops"));
  }
  if (const double others = json.value("cpus_of_others", 0.0); others > 0.05) {
    std::printf("\n%-30s %10.0f %% of the CPUs meanwhile: alone the step is faster", "other programs had",
                100 * others);
  }
  std::printf("\n%-30s %10s a rank\n", "peak memory", human_bytes(number("peak_rss_bytes")).c_str());
  if (json.contains("device_peak_bytes")) {
    std::printf("%-30s %10s a rank\n", "peak memory of the GPU",
                human_bytes(number("device_peak_bytes")).c_str());
  }
  if (json.contains("replayed_passes")) {
    std::printf("%-30s %10ld of the steps; kinds of operation are of passes without\n",
                "replayed CUDA graphs", json.at("replayed_passes").get<long>());
  }
  for (const auto& [kind, seconds] : json.at("seconds_by_kind").items()) {
    if (seconds.get<double>() < 5e-5) continue;
    std::printf("  %-28s %10.1f ms  %3.0f %%\n", kind.c_str(), 1e3 * seconds.get<double>(),
                100 * seconds.get<double>() / number("step_seconds"));
  }
  std::fflush(stdout);
}

}  // namespace

int bench_step(const BenchStepJob& job, const launch::Ranks& ranks) {
  shard::keep_tensor_memory();  // as a training does
  const int64_t threads = eager::set_threads(job.recipe, ranks);
  const at::Device device = eager::choose_device(job.recipe, ranks);
  const std::string command = job.requests.empty() ? concat("bench step --rounds ", job.rounds,
                                                            job.kernels.empty() ? "" : " --kernels")
                                                   : "bench step --requests";
  if (ranks.rank == 0) {
    for (const auto& line : eager::settings_without_effect(job.recipe.run, device)) warn(line);
  }
  const plan::Plan plan = eager::make_plan(job.recipe, ranks.world);
  auto mesh = eager::connect(job.recipe, plan, ranks, [&] {
    return eager::joined_facts(
        {{eager::command_fact(command)}, eager::computing_facts(job.recipe, plan, device)});
  });
  return eager::guarded(
      [&] {
        const int64_t batch = eager::batch_sizes(job.recipe, plan).per_rank;
        if (device.is_cuda()) eager::check_gpu_memory(job.recipe, plan, batch, ranks, "");
        if (device.is_cpu() && ranks.local_rank == 0) eager::check_memory(job.recipe, plan, batch, ranks, "");
        mesh->world().barrier("memory check");
        const eager::DeviceChoices choices =
            eager::choose_for_device(job.recipe, plan, batch, device);  // before the model is there
        const MemoryBefore before;
        StepBench bench(job, plan, ranks, *mesh, device, threads);
        bench.use(choices);
        if (!job.requests.empty()) {
          bench.serve(before);
          mesh->world().barrier("the end");
          return static_cast<int>(kExitDone);
        }
        const Rounds rounds = bench.run();
        const double peak = profile::largest_over_ranks(static_cast<double>(peak_resident_bytes()),
                                                        mesh->world(), "peak memory");
        const double device_peak = profile::largest_over_ranks(
            static_cast<double>(eager::device_memory(device).value_or(loop::DeviceMemory()).peak_bytes),
            mesh->world(), "peak memory of the GPU");
        if (ranks.rank == 0) {
          const Json json = report_of(job, bench, rounds, {ranks, device, threads}, {peak, device_peak});
          if (job.json) {
            std::cout << json.dump(2) << std::endl;
          } else if (!job.quiet) {
            print(json);
          }
          if (!job.output.empty()) write_file_atomic(job.output, json.dump(2) + "\n");
          if (!job.kernels.empty()) {
            write_file_atomic(job.kernels, Json{{"step", json}, {"kernels", rounds.kernels}}.dump(1) + "\n");
          }
        }
        mesh->world().barrier("the end");
        return static_cast<int>(kExitDone);
      },
      mesh, [] { return "benchmarking"; }, "per rank: a smaller --batch would save activations");
}

}  // namespace tessera::train
