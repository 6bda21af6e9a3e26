// SPDX-License-Identifier: Apache-2.0
#include "tessera/arch/cut.h"

#include <numeric>

#include "tessera/base/error.h"

namespace tessera::arch {

DimRange items_of(int64_t items, int64_t degree, int64_t index) {
  TESSERA_CHECK(index >= 0 && index < degree, "rank ", index, " of ", degree);
  return {items * index / degree, items * (index + 1) / degree};
}

std::vector<Box> boxes_of(const ParameterSpec& spec, int64_t degree, int64_t index) {
  if (!spec.is_cut()) return {Box::whole(spec.shape)};
  const Cut& cut = spec.cut;
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t size = spec.shape.at(dim);
  TESSERA_CHECK_EQ(size % (cut.parts * cut.items), 0);
  const int64_t part = size / cut.parts, item = part / cut.items;
  const DimRange items = items_of(cut.items, degree, index);
  std::vector<Box> boxes;
  for (int64_t i = 0; i < cut.parts; ++i) {
    Box box = Box::whole(spec.shape);
    box.dims[dim] = {i * part + items.begin * item, i * part + items.end * item};
    boxes.push_back(std::move(box));
  }
  return boxes;
}

std::vector<int64_t> shape_of(const ParameterSpec& spec, int64_t degree, int64_t index) {
  std::vector<int64_t> shape = spec.shape;
  if (!spec.is_cut()) return shape;
  int64_t size = 0;
  for (const Box& box : boxes_of(spec, degree, index))
    size += box.dims[static_cast<size_t>(spec.cut.dim)].size();
  shape[static_cast<size_t>(spec.cut.dim)] = size;
  return shape;
}

int64_t hidden_items(int64_t hidden) { return hidden / std::gcd(hidden, int64_t{32}); }

DimRange hidden_range(int64_t hidden, int64_t degree, int64_t index) {
  const int64_t items = hidden_items(hidden), item = hidden / items;
  const DimRange mine = items_of(items, degree, index);
  return {mine.begin * item, mine.end * item};
}

}  // namespace tessera::arch
