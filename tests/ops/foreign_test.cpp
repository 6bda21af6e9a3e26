// SPDX-License-Identifier: Apache-2.0
// What is computed where this room has no kernels: the same maths, and nothing that touches memory of another
// device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/ops/adafactor.h"
#include "tessera/ops/cpu/cpu.h"
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

/// What a region of `tensor` adds to rows and columns, and `part`, the region's elements, divided.
Tensors rows_columns_divided(const Factored& tensor, const Region& region, const at::Tensor& part) {
  at::manual_seed(8);
  const at::Tensor row = at::rand(tensor.row_shape) + 0.1, column = at::rand(tensor.column_shape) + 0.1;
  at::Tensor rows = at::ones({tensor.row_numel}, at::kDouble);
  at::Tensor columns = at::ones({tensor.column_numel}, at::kDouble);
  add_squares(tensor, region, part, 0.7, rows.data_ptr<double>(), columns.data_ptr<double>());
  const at::Tensor divided = part.clone();
  divide_by_root(tensor, region, divided, 0.7, row, column);
  const at::Tensor hollow = at::empty({part.numel()}, at::kMeta);
  divide_by_root(tensor, region, hollow, 0.7, row.to(at::kMeta), column.to(at::kMeta));
  return {rows, columns, divided};
}

/// The same by LibTorch's sums and products over the whole tensor, of which all but the region is zero.
Tensors by_formula(const Factored& tensor, const Region& region, const at::Tensor& whole) {
  at::manual_seed(8);
  const at::Tensor row = at::rand(tensor.row_shape) + 0.1, column = at::rand(tensor.column_shape) + 0.1;
  at::Tensor is_in_box = at::zeros_like(whole), view = is_in_box;
  for (size_t dim = 0; dim < region.box.dims.size(); ++dim)
    view = view.narrow(static_cast<int64_t>(dim), region.box.dims[dim].begin, region.box.dims[dim].size());
  view.fill_(1);
  const at::Tensor elements =
      is_in_box.view({-1}).nonzero().view({-1}).narrow(0, region.begin, region.numel());
  const at::Tensor part = at::zeros_like(whole)
                              .view({-1})
                              .index_put({elements}, whole.view({-1}).index({elements}))
                              .view_as(whole);
  const at::Tensor squares = (part.to(at::kDouble) * 0.7).square();
  const at::Tensor root = (row * column / row.mean(tensor.second, true)).sqrt();
  return {squares.sum(tensor.largest).view({-1}) + 1, squares.sum(tensor.second).view({-1}) + 1,
          (whole * 0.7 / root).view({-1}).index({elements})};
}

// Any region of a tensor of any number of dims, with kernels and without: the places of its moments are found
// without its memory.
TEST(Foreign, AdafactorsRowsAndColumnsAreTheKernels) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{40, 50}, {50, 40}, {33, 3, 37}, {2, 64, 36}}) {
    const Factored tensor = *factored(shape);
    at::manual_seed(7);
    const at::Tensor whole = at::randn(shape);
    Box box = Box::whole(shape), none = box;
    for (DimRange& range : box.dims) range = {range.size() / 3, range.size() - 1};
    none.dims[0].end = 0;
    for (const Region& region : {Region::whole(shape), Region::interval(shape, 77, whole.numel() - 13),
                                 Region::of(box), Region{box, 5, box.numel() - 7}, Region::of(none)}) {
      SCOPED_TRACE(to_string(region));
      const Tensors expected = by_formula(tensor, region, whole);
      const at::Tensor part = whole.view({-1}).new_empty({region.numel()});
      int64_t at = 0;
      for (const SharedRun& run : SharedRuns::in_tensor(shape, region)) {
        part.narrow(0, at, run.count).copy_(whole.view({-1}).narrow(0, run.a, run.count));
        at += run.count;
      }
      const Tensors found = rows_columns_divided(tensor, region, part);
      const WithoutKernels foreign;
      const Tensors found_without = rows_columns_divided(tensor, region, part);
      for (size_t i = 0; i < expected.size(); ++i) {
        if (expected[i].numel() == 0) continue;
        EXPECT_LT(error(found[i], expected[i]), i < 2 ? 1e-12 : 1e-6) << i;
        EXPECT_LT(error(found_without[i], expected[i]), i < 2 ? 1e-12 : 1e-6) << i;
      }
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
