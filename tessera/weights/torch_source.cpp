// SPDX-License-Identifier: Apache-2.0
// Training checkpoints of torch.save: {state_dict | model | model_ema | ..., optimizer, args, epoch}.
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/torch_file.h"
#include "tessera/weights/files.h"

namespace tessera::weights {
namespace {

using formats::PickleValue;
using formats::TorchFile;

// In the order in which timm's load_state_dict looks for them; "teacher" and "student" are DINO's.
constexpr std::array<std::string_view, 3> kAveraged = {"state_dict_ema", "model_ema", "teacher"};
constexpr std::array<std::string_view, 4> kTrained = {"state_dict", "model", "module", "student"};
constexpr int kDeepest = 3;

bool holds_tensors(const PickleValue& value) {
  if (!value.is(PickleValue::Kind::kDict)) return false;
  for (const auto& [key, entry] : value.entries) {
    if (TorchFile::is_tensor(*entry)) return true;
  }
  return false;
}

/// The dict of tensors within `value`, and how it was reached; null where there is none.
const PickleValue* find_weights(const PickleValue& value, bool ema, int depth, std::string& path) {
  if (!value.is(PickleValue::Kind::kDict)) return nullptr;
  const auto try_names = [&](const auto& names) -> const PickleValue* {
    for (const std::string_view name : names) {
      const PickleValue* inner = value.find(name);
      if (inner == nullptr || depth == 0) continue;
      std::string below = path.empty() ? std::string(name) : concat(path, '.', name);
      if (const auto* found = find_weights(*inner, ema, depth - 1, below)) {
        path = below;
        return found;
      }
    }
    return nullptr;
  };
  if (ema) {
    if (const auto* found = try_names(kAveraged)) return found;
  }
  if (const auto* found = try_names(kTrained)) return found;
  return holds_tensors(value) ? &value : nullptr;
}

class TorchSource final : public checkpoint::TensorSource {
 public:
  TorchSource(std::unique_ptr<const ByteSource> file, bool ema, Opened& opened) : file_(std::move(file)) {
    const PickleValue* weights = find_weights(file_.root(), ema, kDeepest, opened.nested);
    if (file_.root().is(PickleValue::Kind::kDict)) {
      const PickleValue* architecture = file_.root().find("arch");
      if (architecture != nullptr && architecture->is(PickleValue::Kind::kString))
        opened.architecture = architecture->text;
    }
    if (weights == nullptr) {
      user_error({.where = "weights.torch",
                  .problem = concat(file_.file().path().string(), " has ", file_.root().describe(),
                                    " without tensors"),
                  .expected = "a dict of tensors, or one below state_dict, model or model_ema"});
    }
    for (const auto& [key, value] : weights->entries) {
      if (!key->is(PickleValue::Kind::kString) || !TorchFile::is_tensor(*value)) continue;
      const auto tensor = file_.tensor(*value, key->text);
      tensors_.push_back({key->text, tensor.dtype, tensor.shape});
      places_.push_back(tensor);
    }
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  const checkpoint::Progress& progress() const override { return progress_; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    file_.read(places_.at(tensor), begin, out);
  }

 private:
  TorchFile file_;
  std::vector<formats::TorchTensor> places_;
  std::vector<checkpoint::Manifest::Tensor> tensors_;
  checkpoint::Progress progress_;
};

}  // namespace

std::shared_ptr<checkpoint::TensorSource> open_torch(std::unique_ptr<const ByteSource> file, bool ema,
                                                     Opened& opened) {
  opened.nested.clear();
  return std::make_shared<TorchSource>(std::move(file), ema, opened);
}

}  // namespace tessera::weights
