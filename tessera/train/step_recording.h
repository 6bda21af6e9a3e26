// SPDX-License-Identifier: Apache-2.0
// What one layout computes in its first training steps, as whole tensors: put together from the pieces of all
// ranks, in the order in which a step computes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::train {

/// In the order of a step.
enum class TensorKind {
  kSamples,        // [batch] int64, ascending
  kInitialWeight,  // of the first step alone
  kOutput,         // of a segment: [batch, ...], in the order of kSamples
  kLoss,           // [] float64: mean over the batch
  kGradient,       // float64, without the loss scale, before clipping; from the head to the stem
  kGradientNorm,   // [] float64
  kWeight,         // after the step
  kBuffer          // after the step: the mean over the ranks, as checkpoints have it
};

struct RecordedTensor {
  int64_t step = 1;  // 1-based
  TensorKind kind = TensorKind::kSamples;
  std::string name;   // of the segment, parameter or buffer; empty for the others
  at::Tensor values;  // on the CPU
  std::string fault;  // how ranks contradict each other about it; empty: they do not
};

/// Rows of one rank and micro-batch.
struct RecordedRows {
  int64_t rank = 0, micro_batch = 0;
  std::vector<uint64_t> samples;
  at::Tensor values;  // [samples, ...]
};

/// Filled by the ranks of one layout. Any thread; functions are local.
class StepRecording {
 public:
  explicit StepRecording(const arch::ModelConfig& config);

  /// What came out of a segment; undefined values: the samples alone.
  void add_rows(int64_t step, const std::string& segment, RecordedRows rows);
  /// This rank's shards of weights or gradients (by `kind`), divided by `scale`. Where several ranks hold an
  /// element they must hold the same value.
  void add_shards(int64_t step, TensorKind kind, const shard::ShardedModel& model, int64_t rank,
                  double scale = 1);
  /// A tensor that every rank holds whole; one rank gives it.
  void add_whole(int64_t step, TensorKind kind, const std::string& name, const at::Tensor& values);

  /// Everything so far. Requires: no rank adds meanwhile.
  std::vector<RecordedTensor> tensors() const;

 private:
  using Key = std::tuple<int64_t, TensorKind, int64_t>;  // step, kind, place among those of the kind
  struct Entry {
    std::string name;
    std::vector<RecordedRows> rows;
    at::Tensor whole;
    at::Tensor written;  // of whole, bool: some rank holds it
    std::string fault;
  };
  Entry& entry(int64_t step, TensorKind kind, const std::string& name);
  static RecordedTensor finished(const Key& key, const Entry& entry);

  std::map<std::string, int64_t> places_;  // of segments, parameters and buffers in the model
  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace tessera::train
