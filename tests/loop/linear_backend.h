// SPDX-License-Identifier: Apache-2.0
// A back end in plain C++: softmax regression on pixels, trained by SGD, equal copies on every rank. It shows
// what the loop asks of a back end, and links no LibTorch.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/checkpoint/names.h"
#include "tessera/loop/backend.h"
#include "tessera/loop/one_by_one.h"
#include "tessera/loop/world.h"

namespace tessera::loop {

class LinearBackend final : public Backend {
 public:
  /// Weights are a function of `seed`. `world` outlives it.
  LinearBackend(int64_t pixels, int64_t classes, uint64_t seed, World& world)
      : pixels_(static_cast<size_t>(pixels)),
        classes_(static_cast<size_t>(classes)),
        world_(world),
        weights_((pixels_ + 1) * classes_) {
    for (size_t i = 0; i < pixels_ * classes_; ++i) {
      const uint64_t bits = random_key(seed, static_cast<uint64_t>(i)) >> 11;
      weights_[i] = static_cast<float>(0.02 * (static_cast<double>(bits) / 9007199254740992.0 - 0.5));
    }
  }

  const std::vector<float>& weights() const { return weights_; }
  std::vector<float>& weights() { return weights_; }

  void begin_step(const StepRequest& request) override {
    request_ = request;
    gradient_.assign(weights_.size() + 1, 0);  // the last value is the loss
  }

  StepSamples forward_backward(data::TrainLoader& loader, int64_t micro_batches) override {
    return one_by_one(
        loader, micro_batches, [this](data::TrainLoader* from) { return load(from); },
        [this](const MicroBatch& micro_batch, data::TrainLoader* next) { pass(micro_batch, next); });
  }

  Loaded load(data::TrainLoader* loader) {
    batch_ = loader != nullptr ? loader->next() : data::Batch();
    return {batch_.given_up, batch_.step_size};
  }

  void pass(const MicroBatch& micro_batch, data::TrainLoader* next) {
    const std::vector<float> logits = forward(batch_);
    const double weight = 1.0 / static_cast<double>(micro_batch.samples);
    for (size_t i = 0; i < static_cast<size_t>(batch_.size); ++i) {
      const float* z = &logits[i * classes_];
      const double largest = *std::max_element(z, z + classes_);
      double sum = 0;
      for (size_t c = 0; c < classes_; ++c) sum += std::exp(z[c] - largest);
      const auto label = static_cast<size_t>(batch_.labels[i]);
      gradient_.back() += weight * (std::log(sum) + largest - z[label]);
      for (size_t c = 0; c < classes_; ++c) {
        const double error = weight * (std::exp(z[c] - largest) / sum - (c == label ? 1 : 0));
        for (size_t p = 0; p < pixels_; ++p)
          gradient_[c * pixels_ + p] += error * static_cast<double>(batch_.images[i * pixels_ + p]);
        gradient_[classes_ * pixels_ + c] += error;
      }
    }
    if (next != nullptr) next->give_back(std::move(batch_));
  }

  Votes vote(const Votes& mine) override {
    std::vector<double> votes = {mine.stop ? 1.0 : 0.0, mine.stalled ? 1.0 : 0.0,
                                 static_cast<double>(mine.broken)};
    world_.sum(votes, "votes");
    return {votes[0] > 0, votes[1] > 0, static_cast<int64_t>(votes[2])};
  }

  std::vector<monitor::TensorStatistics> statistics() override { return {}; }

  StepValues sums(const UpdateSettings&) override {
    world_.sum(gradient_, "gradients");
    double squares = 0;
    for (size_t i = 0; i + 1 < gradient_.size(); ++i) squares += gradient_[i] * gradient_[i];
    norm_ = std::sqrt(squares);
    return {gradient_.back(), norm_};
  }

  void update(const UpdateSettings& settings) override {
    const double scale = settings.clip > 0 ? std::min(1.0, settings.clip / (norm_ + 1e-6)) : 1.0;
    for (size_t i = 0; i < weights_.size(); ++i)
      weights_[i] -= static_cast<float>(settings.lr * scale * gradient_[i]);
    ++updates_;
  }

  void discard() override { gradient_.clear(); }

  std::string non_finite_gradient() override {
    for (size_t i = 0; i + 1 < gradient_.size(); ++i) {
      if (!std::isfinite(gradient_[i])) return i < classes_ * pixels_ ? "weight" : "bias";
    }
    return "";
  }

  std::unique_ptr<Evaluator> evaluator(bool, bool) override { return std::make_unique<Weights>(*this); }

  std::unique_ptr<HostState> state_to_save() override { return state_to_load(); }
  std::unique_ptr<HostState> state_to_load() override { return std::make_unique<Memory>(*this); }
  void write_counters(nlohmann::json& progress) const override { progress["updates"] = updates_; }
  void read_counters(const nlohmann::json& progress, int64_t, bool) override {
    updates_ = progress.at("updates").get<int64_t>();
  }
  int64_t updates() const { return updates_; }

  std::string where() const override { return "the linear model"; }

 private:
  class Weights final : public Evaluator {
   public:
    explicit Weights(LinearBackend& backend) : backend_(backend) {}
    data::Batch placeholder_batch() const override { return {}; }
    std::vector<float> logits(const data::Batch& batch) override { return backend_.forward(batch); }

   private:
    LinearBackend& backend_;
  };

  /// The weights are in the host's memory already.
  class Memory final : public HostState {
   public:
    explicit Memory(LinearBackend& backend) {
      const auto classes = static_cast<int64_t>(backend.classes_);
      const auto pixels = static_cast<int64_t>(backend.pixels_);
      add(backend, "weight", {classes, pixels}, 0);
      add(backend, "bias", {classes}, backend.classes_ * backend.pixels_);
    }
    std::vector<checkpoint::TensorShard>& shards() override { return shards_; }
    void store() override {}

   private:
    void add(LinearBackend& backend, const std::string& name, std::vector<int64_t> shape, size_t first) {
      checkpoint::TensorShard shard;
      shard.name = std::string(checkpoint::names::kParameter) + name;
      shard.dtype = "F32";
      shard.region = Region::whole(shape);
      shard.shape = std::move(shape);
      shard.data = reinterpret_cast<std::byte*>(&backend.weights_[first]);
      shard.replica = backend.world_.rank() != 0;
      shards_.push_back(std::move(shard));
    }
    std::vector<checkpoint::TensorShard> shards_;
  };

  std::vector<float> forward(const data::Batch& batch) const {
    std::vector<float> logits(static_cast<size_t>(batch.size) * classes_);
    for (size_t i = 0; i < static_cast<size_t>(batch.size); ++i) {
      for (size_t c = 0; c < classes_; ++c) {
        double sum = weights_[classes_ * pixels_ + c];
        for (size_t p = 0; p < pixels_; ++p)
          sum += static_cast<double>(weights_[c * pixels_ + p]) *
                 static_cast<double>(batch.images[i * pixels_ + p]);
        logits[i * classes_ + c] = static_cast<float>(sum);
      }
    }
    return logits;
  }

  const size_t pixels_, classes_;
  World& world_;
  std::vector<float> weights_;  // [classes, pixels], then [classes] of the bias
  std::vector<double> gradient_;
  double norm_ = 0;
  int64_t updates_ = 0;
  StepRequest request_;
  data::Batch batch_;
};

}  // namespace tessera::loop
