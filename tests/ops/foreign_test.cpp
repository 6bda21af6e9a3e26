// SPDX-License-Identifier: Apache-2.0
// What is computed where this room has no kernels: the same maths, and nothing that touches memory of another
// device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/ops/adafactor.h"
#include "tessera/ops/cpu.h"
#include "tests/meta_kernels.h"
#include "tests/ops/any_layers.h"

namespace tessera::ops {
namespace {

TEST(Foreign, LayersAndTheirGradientsAreTheKernels) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const AnyLayer& layer : any_layers()) {
      SCOPED_TRACE(layer.name + " in " + at::toString(dtype));
      const Tensors expected = run_layer(layer, dtype);
      const WithoutKernels foreign;
      const Tensors found = run_layer(layer, dtype);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), dtype);
        EXPECT_LT(error(found[i], expected[i]), dtype == at::kFloat ? 1e-6 : 2e-2)
            << "output or gradient " << i;
      }
    }
  }
}

// A tensor without memory, on a device that is not the CPU: an op that touched its memory, or made one of its
// tensors elsewhere, would fail.
TEST(Foreign, LayersStayOnTheirDevice) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const AnyLayer& layer : any_layers()) {
      SCOPED_TRACE(layer.name + " in " + at::toString(dtype));
      const Tensors expected = run_layer(layer, dtype);
      const Tensors found = run_layer(layer, at::TensorOptions(dtype).device(at::kMeta));
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(found[i].is_meta());
        EXPECT_EQ(found[i].scalar_type(), dtype);
        EXPECT_EQ(found[i].sizes(), expected[i].sizes());
      }
    }
  }
}

TEST(Foreign, UpdatesAreTheKernelsOverTenSteps) {
  for (const AnyUpdate& update : any_updates()) {
    SCOPED_TRACE(update.name);
    const Tensors expected = after_steps(update, 10);
    const WithoutKernels foreign;
    const Tensors found = after_steps(update, 10);
    EXPECT_GT(error(expected[0], after_steps(update, 9)[0]), 1e-5);  // they do something
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(error(found[i], expected[i]), 1e-6) << i;
  }
}

TEST(Foreign, UpdatesStayOnTheirDevice) {
  for (const AnyUpdate& update : any_updates()) {
    SCOPED_TRACE(update.name);
    Tensors tensors(2 + update.kept);
    for (at::Tensor& tensor : tensors) tensor = at::zeros({41 * 23}, at::kMeta);
    EXPECT_NO_THROW(update.run(tensors, 1));
  }
}

// Any part of a tensor of any number of dims: the places of its moments are found without its memory.
TEST(Foreign, AdafactorsRowsAndColumnsAreTheKernels) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{40, 50}, {50, 40}, {33, 3, 37}, {2, 64, 36}}) {
    const Factored tensor = *factored(shape);
    at::manual_seed(7);
    const at::Tensor whole = at::randn({shape[0] * shape[1] * (shape.size() > 2 ? shape[2] : 1)});
    for (const int64_t begin : {int64_t{0}, int64_t{77}}) {
      const at::Tensor part = whole.narrow(0, begin, whole.numel() - begin - 13);
      const at::Tensor row = at::rand(tensor.row_shape) + 0.1, column = at::rand(tensor.column_shape) + 0.1;
      const auto both = [&] {
        at::Tensor rows = at::ones({tensor.row_numel}, at::kDouble);
        at::Tensor columns = at::ones({tensor.column_numel}, at::kDouble);
        add_squares(tensor, part, begin, 0.7, rows.data_ptr<double>(), columns.data_ptr<double>());
        const at::Tensor divided = part.clone();
        divide_by_root(tensor, divided, begin, 0.7, row, column);
        return Tensors{rows, columns, divided};
      };
      const Tensors expected = both();
      const WithoutKernels foreign;
      const Tensors found = both();
      EXPECT_LT(error(found[0], expected[0]), 1e-12);
      EXPECT_LT(error(found[1], expected[1]), 1e-12);
      EXPECT_LT(error(found[2], expected[2]), 1e-6);
      const at::Tensor hollow = at::empty({part.numel()}, at::kMeta);
      divide_by_root(tensor, hollow, begin, 0.7, row.to(at::kMeta), column.to(at::kMeta));
    }
  }
}

TEST(Foreign, KernelsAreBackAfterwards) {
  {
    const WithoutKernels foreign, nested;
    EXPECT_FALSE(kernels_are_on());
  }
  EXPECT_TRUE(kernels_are_on());
}

}  // namespace
}  // namespace tessera::ops
