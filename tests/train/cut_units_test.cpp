// SPDX-License-Identifier: Apache-2.0
// Every optimizer with matrices that a tensor group cuts by heads and hidden columns, unevenly, over ranks
// that split the state as well, against one rank with whole tensors.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "box_units.h"
#include "tessera/base/file.h"
#include "tests/mesh/ranks.h"

namespace tessera::train::cut_units {  // files of this folder share a translation unit
namespace {

using box_units::expect_equal_state, box_units::BoxUnit, box_units::Trained, box_units::whole;
using shard::Placement, shard::UnitGroups;

constexpr int64_t kHeads = 3, kHeadWidth = 12, kInner = kHeads * kHeadWidth, kWidth = 40, kHidden = 50;

/// How a block is cut: heads and hidden columns of each rank of the tensor group.
struct Cut {
  std::vector<int64_t> heads, hidden;
};

struct Layout {
  std::string name;
  Cut cut;
  int64_t data_parallel = 1;  // ranks that hold the same boxes
  bool adjacent = true;       // neighbours hold different boxes
  bool replicated =
      false;  // ranks that hold the same boxes hold all of them; else the state is split over them
  bool omits_empty = false;  // a rank that has no element of a parameter does not list it

  int64_t tensor() const { return static_cast<int64_t>(cut.heads.size()); }
  int64_t world() const { return tensor() * data_parallel; }
  mesh::Span tensor_span() const { return {adjacent || tensor() == 1 ? 1 : data_parallel, tensor()}; }
  mesh::Span data_parallel_span() const {
    return {adjacent && data_parallel > 1 ? tensor() : 1, data_parallel};
  }
};

const Cut kWhole = {{kHeads}, {kHidden}};
const Cut kTwo = {{2, 1}, {32, 18}}, kThree = {{1, 0, 2}, {20, 20, 10}},
          kFour = {{1, 1, 0, 1}, {16, 9, 16, 9}};
const Cut kFirstHasNothing = {{0, 1, 1, 1}, {0, 16, 16, 18}};

DimRange range_of(const std::vector<int64_t>& sizes, int64_t index) {
  DimRange range;
  for (int64_t i = 0; i <= index; ++i) range = {range.end, range.end + sizes.at(static_cast<size_t>(i))};
  return range;
}

std::vector<std::pair<std::string, Placement>> block(const Cut& cut, int64_t index) {
  const DimRange heads = range_of(cut.heads, index), hidden = range_of(cut.hidden, index), all{0, kWidth};
  const DimRange inner{heads.begin * kHeadWidth, heads.end * kHeadWidth};
  Placement qkv{{3 * kInner, kWidth}, {}}, qkv_bias{{3 * kInner}, {}};
  for (int64_t part = 0; part < 3; ++part) {
    const DimRange rows{part * kInner + inner.begin, part * kInner + inner.end};
    qkv.boxes.push_back({{rows, all}});
    qkv_bias.boxes.push_back({{rows}});
  }
  if (cut.heads.size() == 1) {
    qkv = whole(qkv.shape);
    qkv_bias = whole(qkv_bias.shape);
  }
  return {{"attn.qkv.weight", qkv},
          {"attn.qkv.bias", qkv_bias},
          {"attn.proj.weight", {{kWidth, kInner}, {{{all, inner}}}}},
          {"mlp.fc1.weight", {{kHidden, kWidth}, {{{hidden, all}}}}},
          {"mlp.fc1.bias", {{kHidden}, {{{hidden}}}}},
          {"mlp.fc2.weight", {{kWidth, kHidden}, {{{all, hidden}}}}},
          {"few_rows.weight", {{3, kHidden}, {{{{0, 3}, hidden}}}}}};  // Adafactor does not factor it
}

/// A rank's units: those around the cut one hold whole tensors, split over all ranks.
std::vector<BoxUnit> units_of(const Layout& layout, mesh::Mesh& mesh) {
  const UnitGroups all{mesh.group(mesh::Span{1, layout.world()}), mesh.group("")};
  mesh::Group& tensor = mesh.group(layout.tensor_span());
  mesh::Group &copies = mesh.group(layout.data_parallel_span()), &alone = mesh.group("");
  const UnitGroups cut{layout.replicated ? alone : copies, layout.replicated ? copies : alone, &tensor};
  std::vector<std::pair<std::string, Placement>> boxes;
  for (const auto& [name, place] : block(layout.cut, tensor.rank())) {
    int64_t numel = 0;
    for (const Box& box : place.boxes) numel += box.numel();
    if (numel > 0 || !layout.omits_empty) boxes.emplace_back(name, place);
  }
  return {{"stem", {{"stem.weight", whole({36, 33})}, {"stem.bias", whole({36})}}, all, 0, 3},
          {"blocks.0", boxes, cut, 1, 2},
          {"blocks.0/rows", {{"norm.weight", whole({kWidth})}, {"proj.bias", whole({kWidth})}}, all, 1, 2},
          {"blocks.1", {{"other.weight", whole({kWidth, 33})}, {"other.bias", whole({kWidth})}}, all, 2, 1},
          {"head", {{"head.weight", whole({10, kWidth})}, {"head.bias", whole({10})}}, all, 3, 0}};
}

std::vector<mesh::Span> spans_of(const Layout& layout) {
  std::vector<mesh::Span> spans;
  for (const mesh::Span& span : {layout.tensor_span(), layout.data_parallel_span()})
    if (span.size > 1) spans.push_back(span);
  return spans;
}

/// Ranks and the units that each of them holds.
struct Ranks {
  int64_t world = 1;
  std::vector<mesh::Span> spans;
  std::function<std::vector<BoxUnit>(mesh::Mesh&)> units;
};

Ranks ranks_of(const Layout& layout) {
  return {layout.world(), spans_of(layout), [=](mesh::Mesh& mesh) { return units_of(layout, mesh); }};
}

void on_ranks(const Ranks& ranks, const std::function<void(mesh::Mesh&)>& body) {
  at::set_num_threads(1);
  testing::run_ranks(
      {{"shard", ranks.world}},
      [&](mesh::Mesh& mesh) {
        const at::NoGradGuard no_grad;
        body(mesh);
      },
      std::chrono::seconds(30), /*shared_memory=*/true, ranks.spans);
}

/// Bitwise where elements do not know of each other. Norms, and means of rows and columns, are sums in
/// another order, in float64, so that the float32 that follows may round otherwise. Muon's matrices are the
/// same bits, but at other addresses, to which matrix products may be sensitive.
double tolerance_of(const std::string& optimizer) {
  const bool sums = optimizer == "lamb" || optimizer == "lars" || optimizer == "adafactor";
  return sums || optimizer == "muon" ? 1e-6 : 0;
}

const std::vector<std::string> kOptimizers = {"sgd",  "adamw", "adam",      "lion",
                                              "lamb", "lars",  "adafactor", "muon"};

/// The regions that ranks save, by tensor.
class Saved {
 public:
  void add(const StateShards& shards) {
    const std::lock_guard lock(mutex_);
    for (const checkpoint::TensorShard& shard : shards.list()) {
      auto& [shape, regions] = tensors_[shard.name];
      shape = shard.shape;
      if (!shard.replica) regions.push_back(shard.region);
    }
  }
  void expect_whole() const {
    for (const auto& [name, tensor] : tensors_)
      EXPECT_EQ(partition_fault(tensor.second, tensor.first), std::nullopt) << name;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<Region>>> tensors_;
};

/// Three steps from the start and one from the checkpoint of a single rank give what a single rank with whole
/// tensors gives, and every saved tensor is there exactly once.
void expect_trains_as_one_rank(const Ranks& ranks) {
  const Ranks one = ranks_of({"one", kWhole});
  const TemporaryFolder folder("tessera-cut");
  const auto path = [&](const char* kind, const std::string& optimizer) {
    return folder.path() / (kind + optimizer);
  };
  std::map<std::string, Saved> saved;
  for (const std::string& name : kOptimizers) saved[name];
  on_ranks(ranks, [&](mesh::Mesh& mesh) {
    for (const std::string& name : kOptimizers) {
      Trained trained(ranks.units(mesh), mesh, name);
      for (int64_t step = 1; step <= 3; ++step) trained.step(step);
      trained.save(path("first", name), 3);
      saved.at(name).add(trained.shards());
    }
  });
  for (const auto& [name, regions] : saved) {
    SCOPED_TRACE(name);
    regions.expect_whole();
    EXPECT_EQ(checkpoint::verify(path("first", name) / "step_00000003"), std::vector<std::string>());
  }
  on_ranks(one, [&](mesh::Mesh& mesh) {
    for (const std::string& name : kOptimizers) {
      SCOPED_TRACE(name);
      Trained expected(one.units(mesh), mesh, name), found(one.units(mesh), mesh, name);
      for (int64_t step = 1; step <= 3; ++step) expected.step(step);
      found.load(path("first", name) / "step_00000003");
      expect_equal_state(found, expected, tolerance_of(name));
      expected.save(path("one", name), 3);
    }
  });
  on_ranks(ranks, [&](mesh::Mesh& mesh) {
    for (const std::string& name : kOptimizers) {
      Trained trained(ranks.units(mesh), mesh, name);
      trained.load(path("one", name) / "step_00000003");
      trained.step(4);
      trained.save(path("later", name), 4);
    }
  });
  on_ranks(one, [&](mesh::Mesh& mesh) {
    for (const std::string& name : kOptimizers) {
      SCOPED_TRACE(name);
      Trained expected(one.units(mesh), mesh, name), found(one.units(mesh), mesh, name);
      expected.load(path("one", name) / "step_00000003");
      expected.step(4);
      found.load(path("later", name) / "step_00000004");
      expect_equal_state(found, expected, tolerance_of(name));
    }
  });
}

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class CutUnits : public ::testing::TestWithParam<Layout> {};

TEST_P(CutUnits, TrainSaveAndLoadAsOneRank) { expect_trains_as_one_rank(ranks_of(GetParam())); }

INSTANTIATE_TEST_SUITE_P(
    Layouts, CutUnits,
    ::testing::Values(Layout{"Two", kTwo}, Layout{"Three", kThree}, Layout{"Four", kFour},
                      Layout{"TwoByTwo", kTwo, 2}, Layout{"TwoByTwoStrided", kTwo, 2, false},
                      Layout{"TwoByTwoReplicated", kTwo, 2, true, true}, Layout{"ThreeByTwo", kThree, 2},
                      Layout{"ThreeByTwoStrided", kThree, 2, false}, Layout{"FourByTwo", kFour, 2},
                      Layout{"FourByTwoStrided", kFour, 2, false},
                      Layout{"FirstHasNothing", kFirstHasNothing, 1},
                      Layout{"FirstHasNothingByTwo", kFirstHasNothing, 2, true, false, true}),
    [](const auto& info) { return info.param.name; });

// Rank 0 holds the first units of the model and rank 1 the last ones, all whole.
TEST(UnitsOfStages, TrainSaveAndLoadAsOneRank) {
  expect_trains_as_one_rank({2, {}, [](mesh::Mesh& mesh) {
                               const std::vector<BoxUnit> all = units_of({"one", kWhole}, mesh);
                               const auto half = all.begin() + 3;
                               return mesh.rank() == 0 ? std::vector<BoxUnit>(all.begin(), half)
                                                       : std::vector<BoxUnit>(half, all.end());
                             }});
}

int64_t sent(const mesh::Group& group, const std::string& kind) {
  const auto found = group.traffic().find(kind);
  return found == group.traffic().end() ? 0 : found->second.bytes_sent;
}

// Units of 4616 and 2506 elements: qkv, proj, fc1, fc2, both biases and the few rows of 2 heads and 32
// columns, and of 1 head and 18 columns.
TEST(CutUnitTraffic, MuonSendsTheLargestUnitToTheTensorGroup) {
  const Layout cut{"cut", kTwo, 2};
  const int64_t first = 2 * 12 * 3 * 41 + 40 * 24 + 32 * 41 + 40 * 32 + 3 * 32;
  const int64_t second = 12 * 3 * 41 + 40 * 12 + 18 * 41 + 40 * 18 + 3 * 18;
  on_ranks(ranks_of(cut), [&](mesh::Mesh& mesh) {
    Trained trained(units_of(cut, mesh), mesh, "muon");
    trained.reduce_gradients(1);
    const mesh::Group &tensor = mesh.group(cut.tensor_span()), &shards = mesh.group(cut.data_parallel_span());
    const int64_t mine = tensor.rank() == 0 ? first : second;
    for (const std::string kind : {"all_gather", "reduce_scatter"}) {
      EXPECT_EQ(sent(tensor, kind), 0) << kind;
    }
    const int64_t gathered = sent(shards, "all_gather"), reduced = sent(shards, "reduce_scatter");
    trained.rule().step(trained.states(), {.lr = 0.01, .grad_scale = 0.5, .number = 1}, mesh);
    EXPECT_EQ(sent(tensor, "all_gather"), 4 * first);
    EXPECT_EQ(sent(tensor, "reduce_scatter"), 4 * first);
    EXPECT_EQ(sent(shards, "all_gather") - gathered, 4 * mine / 2);
    EXPECT_EQ(sent(shards, "reduce_scatter") - reduced, 4 * mine / 2);
  });
}

}  // namespace
}  // namespace tessera::train::cut_units
