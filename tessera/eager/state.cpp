// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/model_json.h"
#include "tessera/checkpoint/names.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/step_end.h"
#include "tessera/eager/task.h"
#include "tessera/mesh/checkpoint_ranks.h"
#include "tessera/models/segmented_model.h"
#include "tessera/ops/cpu.h"
#include "tessera/ops/host_values.h"

namespace tessera::eager {
namespace {

using checkpoint::names::kAverage, checkpoint::names::kBuffer, checkpoint::names::kParameter;

/// Is it of the model itself, not of the optimizer or an average?
bool is_of_model(const std::string& name) {
  return name.starts_with(kParameter) || name.starts_with(kBuffer);
}

std::unordered_map<std::string, arch::ParameterSpec> specs_by_name(const arch::ModelConfig& config) {
  std::unordered_map<std::string, arch::ParameterSpec> specs;
  for (auto& spec : arch::parameters(config)) specs.emplace(spec.name, spec);
  return specs;
}

void initialise(TrainState& state) {
  const auto specs = specs_by_name(state.recipe.model);
  for (const auto& unit : state.sharded->units()) {
    for (const shard::Shard& shard : unit->shards()) {
      if (shard.master.numel() == 0) continue;
      // Values are made by the host; elsewhere one parameter's at a time passes through its memory.
      const bool host = shard.master.is_cpu();
      at::Tensor master = shard.master, values = host ? master : at::empty(master.sizes(), at::kFloat);
      int64_t position = 0;
      for (const Region& region : shard.regions) {
        models::initialise(specs.at(shard.name), state.recipe.train.seed, region,
                           values.narrow(0, position, region.numel()));
        position += region.numel();
      }
      if (!host) master.copy_(values);
    }
  }
  state.sharded->parameters_changed();
}

/// A buffer, whole on every rank: rank 0's is saved.
void add_buffer(optim::StateShards& shards, const std::string& name, const at::Tensor& buffer, int64_t rank) {
  const char* dtype = buffer.scalar_type() == at::kLong ? "I64" : "F32";
  shards.add({concat(kBuffer, name), dtype, buffer.sizes().vec(), Region::whole(buffer.sizes().vec()),
              nullptr, rank != 0},
             buffer);
}

/// All of this rank's state.
optim::StateShards shards_of(const TrainState& state) {
  optim::StateShards shards;
  for (const auto& [name, buffer] : state.sharded->buffers()) add_buffer(shards, name, buffer, state.rank);
  for (const auto& unit : state.sharded->units()) {
    for (const shard::Shard& shard : unit->shards())
      optim::add_shard(shards, kParameter, *unit, shard, shard.master);
  }
  if (state.optimizer) state.optimizer->append_shards(shards);
  if (state.ema) state.ema->append_shards(shards);
  return shards;
}

}  // namespace

at::ScalarType resolve_dtype(recipe::Dtype dtype, at::Device device) {
  if (dtype == recipe::Dtype::kAuto)
    return !device.is_cpu() || ops::cpu_favours_bf16() ? at::kBFloat16 : at::kFloat;
  if (dtype == recipe::Dtype::kFloat16) return at::kHalf;
  return dtype == recipe::Dtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
}

std::unique_ptr<TrainState> assemble(const recipe::Recipe& recipe, const plan::Plan& plan, mesh::Mesh& mesh,
                                     bool with_optimizer, at::Device device) {
  auto state = std::make_unique<TrainState>();
  state->recipe = recipe;
  state->plan = plan;
  state->input = std::make_unique<DeviceInput>(recipe.data.transform, device);
  state->model = models::make_model(recipe.model, mesh.world());
  if (!device.is_cpu()) state->model->place(device);
  state->rank = mesh.rank();
  state->task = make_task(recipe);
  state->context.fp8 = recipe.precision.linear == recipe::Linear::kFp8;
  state->guard = monitor::NumericsGuard(recipe.guard);
  std::vector<shard::Segment> parts;
  for (const models::Segment& segment : state->model->segments()) {
    const models::ForwardContext* context = &state->context;
    const auto forward = [&segment, context](const at::Tensor& x) { return segment.forward(x, *context); };
    const auto repeat = [&segment, context, forward]() -> shard::Segment::Forward {
      // A recording holds one pass whole, and its replays' masks are those of the batch that is there then.
      if (ops::host_values_are_kept()) return forward;
      models::ForwardContext then = *context;
      then.observe = nullptr;  // it has been told
      return [&segment, then = std::move(then)](const at::Tensor& x) { return segment.forward(x, then); };
    };
    parts.push_back({segment.name, segment.parameters, forward, segment.buffers, repeat});
  }
  const shard::Precision precision{resolve_dtype(recipe.precision.compute, device),
                                   resolve_dtype(recipe.precision.reduce, device)};
  if (precision.compute == at::kHalf) state->loss_scale = monitor::LossScale(recipe.precision.loss_scale);
  state->sharded = std::make_unique<shard::ShardedModel>(std::move(parts), plan, precision, mesh, device);
  initialise(*state);
  if (with_optimizer) {
    const auto specs = specs_by_name(recipe.model);
    state->optimizer = std::make_unique<optim::Optimizer>(
        *state->sharded, recipe.optimizer, [&](const std::string& name) { return specs.at(name).decay; },
        mesh);
    state->device_update = make_device_update(*state, mesh);
    state->recorded = make_recorded_step(*state, recipe.run.cuda_graphs);
  }
  if (with_optimizer && recipe.ema.decay > 0) {
    state->ema = std::make_unique<optim::Ema>(*state->sharded, recipe.ema);
  }
  return state;
}

void use_choices(TrainState& state, const DeviceChoices& choices) {
  state.context.keeps_activations = choices.keeps_activations;
  if (state.recipe.run.cuda_graphs == recipe::CudaGraphs::kAuto)
    state.recorded = make_recorded_step(state, choices.graphs);
}

std::unique_ptr<TrainState> in_float32(TrainState& state, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  recipe::Recipe recipe = state.recipe;
  recipe.precision.compute = recipe::Dtype::kFloat32;
  recipe.precision.linear = recipe::Linear::kAuto;
  auto copy = assemble(recipe, state.plan, mesh, /*with_optimizer=*/false, state.input->device());
  for (size_t i = 0; i < copy->sharded->units().size(); ++i) {  // the same plan: the same shards
    copy->sharded->units()[i]->master().copy_(state.sharded->units()[i]->master());
  }
  const auto ours = copy->sharded->buffers(), theirs = state.sharded->buffers();
  for (size_t i = 0; i < ours.size(); ++i) at::Tensor(ours[i].second).copy_(theirs[i].second);
  copy->sharded->parameters_changed();
  return copy;
}

void enter(TrainState& state, const data::Batch& batch, bool training, uint64_t key) {
  state.context.training = training;
  state.context.key = key;
  state.context.samples = batch.samples;
}

at::Tensor forward(TrainState& state, const data::Batch& batch, bool training, uint64_t key) {
  enter(state, batch, training, key);
  return state.sharded->forward(images_of(batch, state.input->normalisation(), state.input->device()));
}

at::Tensor forward(TrainState& state, const DeviceInput::Input& input, bool training, uint64_t key) {
  enter(state, input.batch, training, key);
  return state.sharded->forward(input.images);
}

data::Batch placeholder_batch(const TrainState& state) {
  const auto& model = state.recipe.model;
  data::Batch batch;
  batch.channels = model.channels();
  batch.height = batch.width = model.image_size();
  if (!state.sharded->buffers().empty()) return batch;
  batch.size = 1;
  batch.images.resize(static_cast<size_t>(batch.channels * batch.height * batch.width));
  batch.labels = {0};
  batch.samples = {0};
  return batch;
}

namespace {

/// "best_scores_top1": what is under another metric's name says nothing of this one.
std::string best_key(const recipe::Recipe& recipe) { return concat("best_scores_", recipe.checkpoint.best); }

}  // namespace

SaveRequest save_request(TrainState& state, const std::filesystem::path& folder, bool best) {
  state.sharded->average_buffers();
  checkpoint::Progress progress;
  progress.step = state.step;
  nlohmann::json json = {{"optimizer_steps", state.optimizer->steps()},
                         {"ema_updates", state.ema ? state.ema->updates() : 0},
                         {"guard", nlohmann::json::parse(state.guard.to_json())},
                         {"loss_scale", nlohmann::json::parse(state.loss_scale.to_json())},
                         {"eval_due", state.eval_due},
                         {"seconds", state.seconds},
                         {"classes", state.classes}};
  if (state.data) json["data"] = to_json(*state.data);
  if (!state.run.id.empty()) json["run"] = nlohmann::json::parse(checkpoint::to_json_text(state.run));
  if (!state.best.empty()) json[best_key(state.recipe)] = state.best;
  progress.json = json_text(json);
  progress.recipe_toml = recipe::to_toml(state.recipe);
  progress.plan_json = plan::to_json(state.plan);
  progress.model_json = checkpoint::model_json(state.recipe.model);
  optim::StateShards shards = shards_of(state);
  shards.fetch();
  const auto& recipe = state.recipe.checkpoint;
  return {{.folder = folder,
           .keep = recipe.keep,
           .best = best,
           .score = state.score,
           .score_of = recipe.best,
           .keep_best = recipe.keep_best,
           .keep_every = recipe.keep_every},
          std::move(shards),
          std::move(progress)};
}

std::filesystem::path save_state(TrainState& state, mesh::Mesh& mesh, const std::filesystem::path& folder,
                                 bool best) {
  const SaveRequest request = save_request(state, folder, best);
  return checkpoint::save(request.options, request.shards.list(), request.progress,
                          mesh::checkpoint_ranks(mesh.world()));
}

void load_state(TrainState& state, const std::filesystem::path& checkpoint, Weights weights) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint);
  const checkpoint::Progress& progress = manifest.progress;
  checkpoint::refuse_surplus(progress.model_json, state.recipe.model, checkpoint);
  const bool has_average = std::ranges::any_of(
      manifest.tensors, [](const auto& tensor) { return tensor.name.starts_with(kAverage); });
  optim::StateShards held = shards_of(state);
  held.fetch();  // what is not loaded stays as it is
  std::vector<checkpoint::TensorShard>& shards = held.list();
  if (weights == Weights::kAverage) {
    if (!has_average) {
      user_error({.where = "checkpoint.load",
                  .problem = concat(checkpoint.string(), " has no moving average of the weights"),
                  .expected = "a checkpoint of a run with ema.decay above 0"});
    }
    for (auto& shard : shards) {
      if (shard.name.starts_with(kParameter)) {
        shard.name = concat(kAverage, shard.name.substr(kParameter.size()));
      }
    }
  } else if (!has_average) {
    std::erase_if(shards, [](const auto& shard) { return shard.name.starts_with(kAverage); });
  }
  // Converted weights: a training begins with them, and its optimizer has nothing behind it.
  if (progress.step == 0 &&
      std::ranges::all_of(manifest.tensors, is_of_model, &checkpoint::Manifest::Tensor::name)) {
    std::erase_if(shards, [](const auto& shard) { return !is_of_model(shard.name); });
  }
  checkpoint::load(checkpoint, shards);
  held.store();
  state.step = progress.step;
  const auto json = nlohmann::json::parse(progress.json);
  state.best.clear();
  const std::string& metric = state.recipe.checkpoint.best;
  if (json.contains(best_key(state.recipe))) {
    state.best = json.at(best_key(state.recipe)).get<std::vector<double>>();
  } else if (const auto one = json.find("best_" + metric); one != json.end()) {  // of versions that kept one
    state.best = {metric.starts_with("loss") ? -one->get<double>() : one->get<double>()};
  }
  state.guard.restore(json.contains("guard") ? json.at("guard").dump() : "");
  state.loss_scale.restore(json.contains("loss_scale") ? json.at("loss_scale").dump() : "");
  state.eval_due = json.value("eval_due", false);
  state.seconds = json.value("seconds", 0.0);
  state.classes = json.value("classes", std::vector<std::string>());
  state.data = parse_data_record(json.value("data", nlohmann::json()));
  state.run = checkpoint::saved_by(progress);
  if (state.optimizer) state.optimizer->set_steps(json.value("optimizer_steps", progress.step));
  if (state.ema && has_average) state.ema->set_updates(json.value("ema_updates", int64_t{0}));
  if (state.ema && !has_average) state.ema->restart();
  state.sharded->parameters_changed();
}

}  // namespace tessera::eager
