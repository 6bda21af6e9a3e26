// SPDX-License-Identifier: Apache-2.0
// Which ranks hold one sample more than the others. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/plan/spans.h"

namespace tessera::plan {

/// `count` of `world` ranks, rising, chosen so that all groups of each span have as many of them, give or
/// take one: a tensor group works for all samples of its ranks, so the group with most samples decides the
/// time. Without spans: the first ranks. Where the numbers of ranks are no powers of two, groups of several
/// spans may differ by two. Takes world squared steps for each span. Requires: 0 <= count <= world, which
/// each span's stride
/// * size divides.
std::vector<int64_t> balanced_ranks(int64_t world, int64_t count, std::span<const Span> spans);

}  // namespace tessera::plan
