// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/inference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/listing.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"

namespace tessera::models {
namespace {

using checkpoint::names::kBuffer, checkpoint::names::kParameter;

constexpr size_t kShownFaults = 3;

/// Tensors of a source by name; what it has not is remembered and told at the end, all together.
class Reader {
 public:
  explicit Reader(checkpoint::TensorSource& source)
      : source_(source), numbers_(checkpoint::numbers_by_name(source)) {}

  /// A tensor like `like`, in memory of its own.
  at::Tensor read(const std::string& name, const at::Tensor& like) {
    at::Tensor values = at::empty(like.sizes(), at::TensorOptions().dtype(like.scalar_type()));
    const auto found = numbers_.find(name);
    const char* dtype = like.scalar_type() == at::kLong ? "I64" : "F32";
    if (found == numbers_.end()) {
      faults_.push_back(concat("no ", name));
    } else if (const auto& tensor = source_.tensors()[found->second];
               tensor.shape != like.sizes().vec() || tensor.dtype != dtype) {
      faults_.push_back(concat(name, " is ", tensor.dtype, ' ', checkpoint::shape_text(tensor.shape),
                               " instead of ", dtype, ' ', checkpoint::shape_text(like.sizes().vec())));
    } else {
      source_.read(found->second, 0, {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
    }
    return values;
  }

  void refuse_faults(const arch::ModelConfig& config) const {
    if (faults_.empty()) return;
    user_error({.where = "models.load",
                .problem = concat("the weights do not match a ", arch::describe(config), ": ",
                                  join_first(faults_, ", ", kShownFaults))});
  }

 private:
  checkpoint::TensorSource& source_;
  std::unordered_map<std::string, size_t> numbers_;
  std::vector<std::string> faults_;
};

}  // namespace

std::unique_ptr<SegmentedModel> load_model(const arch::ModelConfig& config,
                                           checkpoint::TensorSource& tensors) {
  if (config.classes() == 0) {
    user_error({.where = "models.load",
                .problem = "the weights have no classifier",
                .hint = "tessera checkpoint convert --to-finetune --classes N adds one to train"});
  }
  const at::NoGradGuard no_grad;
  auto model = make_model(config);
  Reader reader(tensors);
  for (const Segment& segment : model->segments()) {
    for (const auto& [name, parameter] : segment.parameters)
      parameter.set_data(reader.read(concat(kParameter, name), parameter));
    for (const auto& [name, buffer] : segment.buffers)
      buffer.copy_(reader.read(concat(kBuffer, name), buffer));
  }
  reader.refuse_faults(config);
  return model;
}

}  // namespace tessera::models
