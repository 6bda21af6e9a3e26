// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search_space.h"

#include <algorithm>
#include <set>
#include <span>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::planner {
namespace {

constexpr int64_t kMostVirtualStages = 4;     // of a rank
constexpr int64_t kMostUnitPasses = 200'000;  // of a step, forward: longer ones take long to simulate

std::vector<int64_t> divisors(int64_t value) {
  std::vector<int64_t> found;
  for (int64_t i = 1; i * i <= value; ++i) {
    if (value % i != 0) continue;
    found.push_back(i);
    if (i != value / i) found.push_back(value / i);
  }
  std::ranges::sort(found);
  return found;
}

/// Ranks on each host that has all it can have.
int64_t host_of(const ProfileTables& tables, const SearchQuestion& question) {
  return std::min(ranks_of_host(tables.profile, question.ranks_of_host), question.ranks);
}

/// Stages lie alike on the hosts: each on whole hosts, or several whole ones on each.
bool lies_on_hosts(int64_t stages, int64_t stage_ranks, int64_t host) {
  return stages == 1 || stage_ranks % host == 0 || host % stage_ranks == 0;
}

/// Have the stages the same passes in the same order? (Of so few micro-batches orders with other names are
/// the same.)
bool has_same_actions(const Frame& one, const Frame& other) {
  constexpr int64_t kMostMicroBatches = 2;  // with more of them the last stage's passes differ
  return one.micro_batches <= kMostMicroBatches &&
         plan::schedules_of(one.shape()) == plan::schedules_of(other.shape());
}

void add_pipelines(Frame frame, int64_t units, std::vector<Frame>* frames) {
  const size_t first = frames->size();
  const auto add = [&] {
    const auto own = std::span(*frames).subspan(first);
    if (std::ranges::none_of(own, [&](const Frame& other) { return has_same_actions(frame, other); }))
      frames->push_back(frame);
  };
  for (const int64_t ahead : {0, 1}) {
    frame.ahead = ahead;
    add();
  }
  frame.ahead = 0;
  frame.schedule = plan::Schedule::kGpipe;
  add();
  frame.schedule = plan::Schedule::kInterleaved;
  for (int64_t parts = 2; parts <= kMostVirtualStages; parts *= 2) {
    if (frame.stages * parts > units || frame.micro_batches % frame.stages != 0) continue;
    frame.virtual_stages = parts;
    frames->push_back(frame);
  }
}

/// Degrees that were measured, divide the ranks of a stage, lie within a host and can cut the model.
std::vector<int64_t> tensor_degrees(const ProfileTables& tables, int64_t ranks, int64_t host) {
  std::set<int64_t> measured;
  for (const UnitTimes& unit : tables.profile.units) measured.insert(unit.tensor);
  const bool has_exchanges = std::ranges::any_of(
      tables.profile.links, [](const LinkTimes& link) { return link.operation == "exchange"; });
  std::vector<int64_t> degrees;
  for (const int64_t degree : measured) {
    if (degree > 1 && !has_exchanges) continue;
    if (degree < 1 || ranks % degree != 0 || (degree > 1 && host % degree != 0)) continue;
    if (degree > 1 && std::ranges::none_of(tables.exchanges, [](double count) { return count > 0; }))
      continue;
    degrees.push_back(degree);
  }
  return degrees;
}

std::set<plan::Recompute> recomputes_of(const Profile& profile, int64_t tensor) {
  std::set<plan::Recompute> found = {plan::Recompute::kNone};
  for (const UnitTimes& unit : profile.units) {
    const bool applies = tensor > 1 || unit.recompute != plan::Recompute::kKeepSums;
    if (unit.tensor == tensor && applies) found.insert(unit.recompute);
  }
  return found;
}

/// Levels and groups of a unit that `tensor` ranks hold together.
std::vector<plan::UnitPlan> levels_of(int64_t ranks, int64_t tensor, int64_t host) {
  std::vector<plan::UnitPlan> found;
  const int64_t copies = ranks / tensor, of_host = host / tensor;
  for (const plan::Level level :
       {plan::Level::kReplicate, plan::Level::kZero1, plan::Level::kZero2, plan::Level::kZero3}) {
    plan::UnitPlan unit;
    unit.level = level;
    unit.layout = {tensor, true};
    found.push_back(unit);
    if (level == plan::Level::kReplicate || of_host < 2 || of_host >= copies || copies % of_host != 0)
      continue;
    unit.shard = of_host;
    found.push_back(unit);
  }
  if (ranks == 1) found.resize(1);
  return found;
}

bool is_whole(const plan::UnitPlan& unit) { return !unit.is_cut() && !unit.recomputes(); }

}  // namespace

std::vector<Frame> frames_of(const ProfileTables& tables, const SearchQuestion& question) {
  const int64_t units = std::ssize(tables.kinds), host = host_of(tables, question);
  // A rank without images would have no statistics of its BatchNorm.
  const bool each_rank_needs_one = !arch::buffers(tables.profile.model).empty();
  std::vector<Frame> frames;
  for (const int64_t batch : question.batches) {
    for (const int64_t stages : divisors(question.ranks)) {
      const int64_t ranks = question.ranks / stages;
      if (stages > units || !lies_on_hosts(stages, ranks, host) || (each_rank_needs_one && batch < ranks))
        continue;
      const int64_t images_of_rank = (batch + ranks - 1) / ranks;  // of the rank with most of them
      const auto counts = question.micro_batches > 0 ? std::vector<int64_t>{question.micro_batches}
                                                     : divisors(images_of_rank);
      for (const int64_t micro_batches : counts) {
        const int64_t images = (images_of_rank + micro_batches - 1) / micro_batches;
        if (question.images_of_rank > 0 && images != question.images_of_rank) continue;
        if (question.equal_ranks && images * micro_batches * ranks != batch) continue;
        if (micro_batches * units > kMostUnitPasses) continue;
        const Frame frame{.batch = batch, .stages = stages, .micro_batches = micro_batches, .images = images};
        stages > 1 ? add_pipelines(frame, units, &frames) : frames.push_back(frame);
      }
    }
  }
  return frames;
}

Choices choices_of(const ProfileTables& tables, const SearchQuestion& question, int64_t stages) {
  const int64_t ranks = question.ranks / stages, host = host_of(tables, question);
  Choices choices;
  const auto add = [&](const plan::UnitPlan& unit) {
    if (std::ranges::find(choices.all, unit) == choices.all.end()) choices.all.push_back(unit);
  };
  for (const int64_t tensor : tensor_degrees(tables, ranks, host)) {
    for (plan::UnitPlan unit : levels_of(ranks, tensor, host)) {
      for (const plan::Recompute recompute : recomputes_of(tables.profile, tensor)) {
        unit.recompute = recompute;
        for (const bool adjacent : {true, false}) {
          if (!adjacent && (tensor == 1 || tensor == ranks || ranks > host || unit.shard > 0)) continue;
          unit.layout.adjacent = adjacent;
          unit.keep_gathered = tensor > 1;
          add(unit);
          if (tensor == 1 || unit.recomputes()) continue;
          unit.keep_gathered = false;
          add(unit);
        }
      }
    }
  }
  choices.allowed.assign(tables.kinds.size(), std::vector<bool>(choices.all.size()));
  for (size_t i = 0; i < tables.kinds.size(); ++i) {
    const bool is_end = i == 0 || i + 1 == tables.kinds.size();
    for (size_t c = 0; c < choices.all.size(); ++c) {
      const plan::UnitPlan& unit = choices.all[c];
      choices.allowed[i][c] = is_end ? is_whole(unit)
                                     : (tables.exchanges[i] > 0 || !unit.is_cut()) &&
                                           (!question.allowed || question.allowed(stages, unit));
    }
  }
  return choices;
}

plan::UnitPlan without_cut(plan::UnitPlan choice) {
  choice.shard *= choice.layout.tensor;  // the same ranks of a host
  choice.layout = {};
  choice.recompute = plan::Recompute::kNone;
  choice.keep_gathered = false;
  return choice;
}

std::vector<std::string> restrictions_of(const ProfileTables& tables, const SearchQuestion& question) {
  std::set<int64_t> degrees;
  for (const UnitTimes& unit : tables.profile.units) degrees.insert(unit.tensor);
  std::string measured;
  for (const int64_t degree : degrees) measured += concat(measured.empty() ? "" : ", ", degree);
  std::vector<std::string> found = {
      concat("tensor degrees are those of the profile (", measured,
             "), within a host; groups of ranks that are not neighbours "
             "(strided) only where a stage lies within a host"),
      "stem and head are not cut and not recomputed",
      "state is split over all ranks of a stage that hold the same part of a layer, or over those of a host",
      "stages have equally many ranks; each has whole hosts, or each host has whole stages",
      "micro-batches divide the images of a rank evenly",
      concat("interleaved pipelines have 2 or ", kMostVirtualStages,
             " virtual stages a rank, cut by FLOPs, and one layout for all blocks"),
      "1F1B pipelines run 0 or 1 micro-batches ahead; orders of passes that are the same are tried once",
      concat("prefetch is 0, 1 or 2 in plans with one layout for all blocks",
             question.layer_by_layer ? ", and 0 or 1 in others" : ""),
      concat("at most ", kMostUnitPasses, " passes of units in a step"),
      "nothing is offloaded"};
  found.push_back(question.layer_by_layer
                      ? concat("where more than ", static_cast<int64_t>(question.all_plans),
                               " plans are to be compared, the blocks of a stage have one tensor layout and "
                               "one group that splits their "
                               "state, and differ in level, recompute and keep_gathered; in a pipeline they "
                               "have at most two layouts, "
                               "one behind the other, and stem and head that of the block beside them")
                      : "all blocks have one layout; stem and head have its level");
  return found;
}

}  // namespace tessera::planner
