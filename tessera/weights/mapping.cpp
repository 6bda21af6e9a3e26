// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/mapping.h"

#include "tessera/base/error.h"

namespace tessera::weights {

Mapping::Mapping(const std::vector<arch::ParameterSpec>& ours) {
  for (const auto& spec : ours) {
    ours_.emplace(spec.name, spec.shape);
    names_.push_back(spec.name);
  }
}

const Shape& Mapping::shape(const std::string& ours) const {
  const auto at = ours_.find(ours);
  TESSERA_CHECK(at != ours_.end(), ours);
  return at->second;
}

void Mapping::same(const std::string& ours, const std::string& theirs, const Shape& given) {
  const Shape& dims = given.empty() ? shape(ours) : given;
  link({.ours = ours, .theirs = theirs, .dims = dims, .order = {}}, dims);
}

void Mapping::layer(const std::string& ours, const std::string& theirs) {
  same(ours + ".weight", theirs + ".weight");
  same(ours + ".bias", theirs + ".bias");
}

void Mapping::turned(const std::string& ours, const std::string& theirs, const Shape& shape,
                     std::vector<size_t> order) {
  link({.ours = ours, .theirs = theirs, .dims = shape, .order = std::move(order)}, shape);
}

void Mapping::link(Link link, const Shape& shape) {
  TESSERA_CHECK(has(link.ours), link.ours);
  if (!link.theirs.empty()) theirs_.emplace(link.theirs, shape);
  links_.push_back(std::move(link));
}

}  // namespace tessera::weights
