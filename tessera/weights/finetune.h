// SPDX-License-Identifier: Apache-2.0
// A trained model as the beginning of another: another resolution, other classes, a head of one layer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/checkpoint/tensor_source.h"
#include "tessera/weights/positions.h"

namespace tessera::weights {

enum class HeadStart {
  kAuto,  // kept where there are as many classes, else zeros
  kKeep,
  kZero,
  kFresh  // no value: whoever trains gives it one
};
/// "auto", "keep", "zero", "fresh". Errors: UserError that names the nearest.
HeadStart head_start_of(const std::string& name);

struct FinetuneOptions {
  Resampling positions = Resampling::kBicubic;
  HeadStart head = HeadStart::kAuto;
  float head_bias = 0;  // of a head of zeros
};

/// The parameters of the model `to`, from those of `from`; what is computed (sin-cos positions) is left out.
/// Positions of a ViT are resampled (the rows of class token and registers stay); the first convolution is
/// made for another number of channels (channels.h) and for patches of another size (patches.h); a
/// pretraining head's inner layer is dropped; what the head has no value for is new; the norm of another pool
/// begins as the identity, as MAE's does. Every other tensor is that of the source.
class FinetunedSource final : public checkpoint::TensorSource {
 public:
  /// `source`: "param/..." of `from`, whatever else it has is left out. `from`: its classes may be 0 (no
  /// head). Errors: UserError when the models differ in more than that, or tensors are missing.
  FinetunedSource(std::shared_ptr<checkpoint::TensorSource> source, const arch::ModelConfig& from,
                  const arch::ModelConfig& to, const FinetuneOptions& options);

  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  /// Requires: not is_fresh(tensor).
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override;
  const checkpoint::Progress& progress() const override { return source_->progress(); }

  /// True where the source's tensor is handed on as it is.
  bool is_same(size_t tensor) const { return origins_[tensor].kind == Kind::kSame; }
  bool is_fresh(size_t tensor) const { return origins_[tensor].kind == Kind::kFresh; }
  /// What became of tensors that are not the same, a line each.
  const std::vector<std::string>& changes() const { return changes_; }

 private:
  enum class Kind { kSame, kComputed, kConstant, kFresh };
  struct Origin {
    Kind kind = Kind::kSame;
    size_t source = 0;
    float value = 0;
    std::vector<float> computed = {};  // whole
  };
  Origin origin_of(const arch::ParameterSpec& spec, const arch::ModelConfig& from,
                   const arch::ModelConfig& to, const FinetuneOptions& options);
  Origin head_origin(const arch::ParameterSpec& spec, bool kept, const FinetuneOptions& options);
  void note_vit_changes(const arch::VitConfig& from, const arch::VitConfig& to);
  const checkpoint::Manifest::Tensor* find(const std::string& name, size_t& number) const;
  std::vector<float> resampled(size_t source, const arch::VitConfig& from, const arch::VitConfig& to,
                               Resampling how);
  std::vector<float> first_layer(size_t source, const arch::ParameterSpec& spec);

  std::shared_ptr<checkpoint::TensorSource> source_;
  std::vector<checkpoint::Manifest::Tensor> tensors_;
  std::vector<Origin> origins_;
  std::vector<std::string> changes_, missing_;
};

}  // namespace tessera::weights
