// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism over samples.
//
// Note [The residual stream does not move]: samples of an image model are independent and short, so each rank
// of a pipeline stage holds the activations of its own whole samples in every layer, however the layers are
// cut. A cut layer gathers the samples of its tensor group (enter), computes its heads or hidden units of all
// of them, and sends each rank the sums of its samples (leave): Megatron-LM's sequence parallelism
// (arXiv 2205.05198) with samples in the place of tokens. So two layers that are cut over different ranks
// need nothing between them, and numbers of tokens or heads need not be divisible by anything.
//
// Belongs to the training thread. Collective: every rank of the group calls the same functions in the same
// order, in backward as well.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/parallel/group_samples.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {

/// What is added to a sum of partial results. Undefined: nothing.
struct Summands {
  at::Tensor bias;      // [width]
  at::Tensor residual;  // as the sum
};

/// Some samples of every rank of a group.
struct Piece {
  GroupSamples samples;
  int64_t first = 0, count = 0;  // this rank's: of its samples of the micro-batch
};

/// `pieces` of them, or as many as the rank with the most samples has; each has a sample. `rank`: of the
/// group.
std::vector<Piece> pieces_of(const GroupSamples& samples, int64_t rank, int64_t pieces);

/// Makes partial sums [samples of the piece, ..., width] of the group's rows [samples of the piece, ...,
/// width]. They depend on the rows in autograd's graph, on every rank.
using PieceLayers = std::function<at::Tensor(const at::Tensor& rows, const Piece& piece)>;

/// The ranks that hold one copy of a unit's layers together.
class TensorGroup {
 public:
  /// `index`: of its GroupSamples in TensorGroups::exchange(). `keeps_gathered`: gathered rows stay for
  /// backward; else layers gather them again. `pieces`: of a pass, see run(). The ranks outlive it.
  TensorGroup(mesh::Group& ranks, size_t index, bool keeps_gathered, int64_t pieces)
      : ranks_(ranks), index_(index), keeps_gathered_(keeps_gathered), pieces_(pieces) {}

  int64_t size() const { return ranks_.size(); }
  int64_t rank() const { return ranks_.rank(); }
  size_t index() const { return index_; }
  bool keeps_gathered() const { return keeps_gathered_; }

  /// The group's samples, rank 0's first, [sum of counts, ...], of this rank's `rows` [counts[rank()], ...];
  /// any float dtype, in which they travel. The gradient is summed as leave() does. `what`: the layer, for
  /// errors.
  at::Tensor enter(const at::Tensor& rows, const GroupSamples& samples, const std::string& what) const;

  /// A pass of cut layers, of one micro-batch. References live until run() returns.
  struct Pass {
    at::Tensor rows;  // [own samples, ..., width]
    Summands summands;
    const GroupSamples& samples;
    std::string what;  // the layer, for errors
    /// The result, from an earlier run: then forward sends no sums. Undefined: there is none.
    at::Tensor known = {};
  };
  /// leave(layers(enter(rows))) in pieces of the samples, so that exchanges go on beside products.
  at::Tensor run(const Pass& pass, const PieceLayers& layers) const;

  /// enter() without a gradient, for backward.
  at::Tensor gather_again(const at::Tensor& rows, const GroupSamples& samples, const std::string& what) const;

  /// This rank's samples of the sum over ranks of `partial` [sum of counts, ..., width], with the summands:
  /// [counts[rank()], ..., width] in partial's dtype. Partial results travel in their dtype; they are added
  /// in float32 (float64 of float64) in the order of the ranks, then bias and residual, and rounded once.
  at::Tensor leave(const at::Tensor& partial, const Summands& summands, const GroupSamples& samples,
                   const std::string& what) const;

 private:
  mesh::Group& ranks_;
  size_t index_;
  bool keeps_gathered_;
  int64_t pieces_;
};

/// All tensor groups of a plan that this rank is in.
class TensorGroups {
 public:
  /// The mesh has the groups of plan::spans_of(plan), and outlives it. `pieces`: see TensorGroup::run(); 0:
  /// what suits each group's transport.
  TensorGroups(const plan::Plan& plan, mesh::Mesh& mesh, int64_t pieces = 0);
  ~TensorGroups();
  TensorGroups(const TensorGroups&) = delete;
  TensorGroups& operator=(const TensorGroups&) = delete;

  /// Of a unit by its name; null where its layers are not cut.
  const TensorGroup* of(const std::string& unit) const;
  /// Tells the groups which samples this rank holds in the pass that follows, and learns theirs, by
  /// TensorGroup::index(). One message a group. Collective.
  std::vector<GroupSamples> exchange(std::span<const uint64_t> mine);

 private:
  struct Member {
    mesh::Group* ranks = nullptr;
    int64_t room = 0;  // samples that a message has room for; the same on every rank of the group
  };
  static GroupSamples exchange(Member& member, std::span<const uint64_t> mine);

  std::vector<Member> members_;  // by TensorGroup::index()
  std::unordered_map<std::string, TensorGroup> by_unit_;
};

}  // namespace tessera::parallel
