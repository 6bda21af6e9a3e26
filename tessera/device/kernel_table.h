// SPDX-License-Identifier: Apache-2.0
// What a device's own fused kernels are asked for, as plain memory: the kernels see no LibTorch, so that
// nvcc compiles them fast. Pointers are into the device's memory, tensors contiguous, and none has size 0;
// work is queued on `stream`. Filled in by the operations, which say when a kernel fits (ops/).
#pragma once

#include <cstdint>

namespace tessera::device {

/// Of the numbers behind a void pointer.
enum class Number : int32_t { kFloat, kHalf, kBFloat16 };

/// y = (s - mean) / sqrt(variance + epsilon) * weight + bias of each row s = x + added.
struct NormForward {
  Number number;
  int64_t rows, width;
  const void* x;              // [rows, width]
  const void* added;          // the same, or null: nothing is
  const void *weight, *bias;  // [width]
  float epsilon;
  void* sum;     // [rows, width] s, rounded before it is normalised; null where nothing is added
  void* y;       // [rows, width]
  float* stats;  // [rows, 2]: mean and 1 / sqrt(variance + epsilon)
};

/// of_x = the gradient through the norm + of_sum; sums over rows for weight and bias, always in the same
/// order.
struct NormBackward {
  Number number;
  int64_t rows, width;
  const void* gradient;  // [rows, width] of y
  const void* of_sum;    // [rows, width] of s from elsewhere, or null
  const void* s;         // [rows, width]
  const void* weight;    // [width]
  const float* stats;
  void* of_x;       // [rows, width]
  float* partial;   // [DeviceKernels::norm_parts(rows, width), 2, width]; null: the next two are not wanted
  void* of_weight;  // [width]
  void* of_bias;    // [width]
};

/// The numbers that AdamW multiplies with (ops/adamw.h), but for the gradient's scale. Adam adds
/// coupled_decay * parameter to the gradient and has decay 1; AdamW has coupled_decay 0.
struct AdamwCoefficients {
  float decay, coupled_decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_correction2,
      epsilon;
};
/// Elements [begin, end) of a shard, which are updated with one row of a table of coefficients.
struct AdamwRun {
  int64_t begin, end, row;
};
/// An update whose numbers lie in the device's memory, so that they need not be known when it is queued.
struct AdamwTable {
  int64_t runs;                           // >= 1
  const AdamwRun* run;                    // [runs] in ascending order; they do not overlap
  const AdamwCoefficients* coefficients;  // [rows]
  const float* grad_scale;                // [1]
  const float* use;                       // [1]; 0 = leave everything as it is
};
struct AdamwPass {
  int64_t count;
  float* parameter;
  Number gradient_number;  // kFloat or copy_number
  const void* gradient;
  float *exp_avg, *exp_avg_sq;
  Number copy_number;  // kHalf or kBFloat16
  void* copy;          // [count] the parameter's new values; null: not wanted
  // With `table.run` null all elements are updated, with these:
  AdamwCoefficients by;
  float grad_scale;
  AdamwTable table;
};

/// to = from, or to += from, of several runs of values in one launch.
struct CopyPass {
  static constexpr int kMostRuns = 64;
  struct Run {
    const void* from;
    void* to;
    int64_t count;  // > 0
  };
  Number from, to;  // the same, or `to` is kFloat
  bool add;
  int runs;  // > 0
  Run run[kMostRuns];
};

/// Cross entropy of rows of logits against (1 - smoothing) * target + smoothing / classes, where a target is
/// `share` of the label and the rest of the second.
struct CrossEntropy {
  int64_t rows, classes;
  const float* logits;    // [rows, classes]
  const int64_t* labels;  // [rows] in [0, classes): else the row's loss is NaN
  const int64_t* second;  // the same, or null: one label
  const float* share;     // [rows], with `second`
  float smoothing;
};
struct CrossEntropyForward {
  CrossEntropy of;
  float *losses, *log_sums;  // [rows]; the second: of the exponentials
};
struct CrossEntropyBackward {
  CrossEntropy of;
  const float* log_sums;  // [rows]
  const float* gradient;  // [1] of the sum of the losses
  float* of_logits;       // [rows, classes]
};

/// y = x Phi(x), the exact GELU, in fp32.
struct Gelu {
  Number number;
  int64_t count;
  const void* x;  // [count]
  void* y;        // [count]
};
/// of_x = gradient * gelu'(x), and y = gelu(x) again, the same bits: x is read once for both.
struct GeluBackward {
  Number number;
  int64_t count;
  const void *gradient, *x;  // [count]; of y, and the GELU's input
  void* of_x;                // [count]; may be `gradient`
  void* y;                   // [count]; null: not wanted
};
/// of_x of GeluBackward, of a matrix, and the sums of its columns before they are rounded, always in the same
/// order.
struct GeluBackwardSums {
  Number number;
  int64_t rows, width;
  const void *gradient, *x;  // [rows, width]
  void* of_x;                // [rows, width]
  float* partial;            // [DeviceKernels::sum_parts(rows, width), width]
  void* sums;                // [width]
};
/// The matrices side by side, and the sums of the columns, always in the same order.
struct ConcatSums {
  static constexpr int64_t kParts = 3;
  Number number;
  int64_t rows, width;       // of the result; width is a multiple of kParts
  const void* part[kParts];  // [rows, width / kParts]
  void* result;              // [rows, width]
  float* partial;            // [DeviceKernels::sum_parts(rows, width), width]
  void* sums;                // [width]
};

/// data/uint8_images.h's numbers of a batch. Numbers that do not fit int32 are refused by who fills this in.
struct Uint8Images {
  struct Erasure {
    int32_t y, x, height, width;
    int32_t begin, count;  // in `contents`: 0 numbers stand for zeros, `channels` for a colour
  };
  struct Mix {
    int32_t other;
    float share;                  // of the own picture, outside of the box
    int32_t y, x, height, width;  // where the other's is; 0 high: nowhere
  };
  int32_t size, height, width, channels;
  const uint8_t* bytes;           // [rows >= size, height, width, channels]
  const float *scale, *shift;     // [channels]
  const int32_t* erasures_begin;  // [rows + 1] in `erasures`
  const Erasure* erasures;
  const float* contents;
  const Mix* mixes;  // [size], or null: nothing is mixed
  float* numbers;    // [size, channels, height, width]
};

/// fp8_linear.h's Fp8Rows. Rows and columns behind the given ones are zeros.
struct Fp8Pass {
  Number number;
  int64_t rows, columns;                // of x
  int64_t filled_rows, filled_columns;  // of the result; >= those
  const void* x;                        // [rows, columns]
  uint8_t* numbers;                     // [filled_rows, filled_columns] e4m3
  float* scales;                        // [filled_rows]
};

/// Safe from any thread. They throw tessera::Error where the device refuses the work. A kernel may be null:
/// LibTorch's operations take its place then.
struct DeviceKernels {
  /// The current stream of the device, as the kernels take it.
  void* (*stream)(int device);
  int64_t (*norm_parts)(int64_t rows, int64_t width);
  void (*norm_forward)(const NormForward& pass, void* stream);
  void (*norm_backward)(const NormBackward& pass, void* stream);
  void (*adamw)(const AdamwPass& pass, void* stream);
  void (*copy_runs)(const CopyPass& pass, void* stream);
  void (*cross_entropy)(const CrossEntropyForward& pass, void* stream);
  void (*cross_entropy_backward)(const CrossEntropyBackward& pass, void* stream);
  void (*gelu)(const Gelu& pass, void* stream);
  void (*gelu_backward)(const GeluBackward& pass, void* stream);
  int64_t (*sum_parts)(int64_t rows, int64_t width);
  void (*gelu_backward_sums)(const GeluBackwardSums& pass, void* stream);
  void (*concat_sums)(const ConcatSums& pass, void* stream);
  void (*uint8_images)(const Uint8Images& pass, void* stream);
  void (*fp8_rows)(const Fp8Pass& pass, void* stream);
};

}  // namespace tessera::device
