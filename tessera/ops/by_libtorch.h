// SPDX-License-Identifier: Apache-2.0
// The updates of flat shards as LibTorch's operations: for devices that this room has no kernels for. The
// same maths in the same order as the kernels' (tests/ops/foreign_test.cpp says how close); several passes
// over memory where they make one. Arguments and formulas: adamw.h, elementwise.h, adafactor.h. Private to
// the room.
#pragma once

#include "tessera/ops/adafactor.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/elementwise.h"

namespace tessera::ops::by_libtorch {

constexpr double kLeastSquare = 1e-30;  // Adafactor's, added to every square

void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& options);
/// `coefficients`: a row of AdamwOnDevice's. Each operation is one of the kernels'.
void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const at::Tensor& coefficients, bool coupled, const at::Tensor& grad_scale, const at::Tensor& use);
void sgd(at::Tensor parameter, const at::Tensor& gradient, at::Tensor velocity, const SgdOptions& options);
void lion(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, const LionOptions& options);
void move_average(at::Tensor average, const at::Tensor& values, double decay);

/// The sums come to the host: one wait for the device.
void add_squares(const Factored& tensor, const Region& region, const at::Tensor& gradient, double grad_scale,
                 double* row_sums, double* column_sums);
void divide_by_root(const Factored& tensor, const Region& region, at::Tensor gradient, double grad_scale,
                    const at::Tensor& row, const at::Tensor& column);
void divide_by_root(at::Tensor gradient, double grad_scale, at::Tensor squares, double decay);
void follow(at::Tensor parameter, const at::Tensor& update, at::Tensor average, double lr, double momentum,
            double weight_decay);

}  // namespace tessera::ops::by_libtorch
