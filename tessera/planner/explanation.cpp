// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/explanation.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <iterator>
#include <set>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/on_threads.h"
#include "tessera/base/text.h"
#include "tessera/planner/lookup.h"
#include "tessera/planner/search_space.h"
#include "tessera/planner/unit_cost.h"

namespace tessera::planner {
namespace {

constexpr double kAlike = 5e-4;       // relative: times that a sentence does not tell apart
constexpr size_t kMostCauses = 3;     // in a sentence
constexpr double kSmallCause = 0.15;  // of all that a plan loses: not named after the first

/// A kind of plan that all blocks have.
struct PlanKind {
  const char* name;
  bool (*holds)(int64_t stages, const plan::UnitPlan& block);
};

bool has_level(int64_t stages, const plan::UnitPlan& block, std::initializer_list<plan::Level> levels) {
  return stages == 1 && !block.is_cut() && std::ranges::find(levels, block.level) != levels.end();
}

constexpr PlanKind kPlanKinds[] = {
    {"data parallel",
     [](int64_t stages, const plan::UnitPlan& block) {
       return has_level(stages, block, {plan::Level::kReplicate});
     }},
    {"ZeRO-1 or ZeRO-2",
     [](int64_t stages, const plan::UnitPlan& block) {
       return has_level(stages, block, {plan::Level::kZero1, plan::Level::kZero2});
     }},
    {"ZeRO-3", [](int64_t stages,
                  const plan::UnitPlan& block) { return has_level(stages, block, {plan::Level::kZero3}); }},
    {"tensor parallel",
     [](int64_t stages, const plan::UnitPlan& block) { return stages == 1 && block.is_cut(); }},
    {"pipeline", [](int64_t stages, const plan::UnitPlan& block) { return stages > 1 && !block.is_cut(); }},
    {"pipeline and tensor parallel",
     [](int64_t stages, const plan::UnitPlan& block) { return stages > 1 && block.is_cut(); }}};

std::string percent_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

bool is_same_plan(const FoundPlan& a, const FoundPlan& b) {
  return a.batch == b.batch && a.question.accumulation == b.question.accumulation &&
         a.question.plan == b.question.plan;
}

const StepParts& parts_of(const FoundPlan& plan) { return plan.time.stages[plan.time.slowest].parts; }

bool recomputes(const FoundPlan& plan) {
  return std::ranges::any_of(plan.question.plan.units, &plan::UnitPlan::recomputes);
}

/// Something that a step is spent on: "waits 120 ms for images" is before, seconds, after.
struct Cause {
  double StepParts::*part;
  const char *before, *after;
};

constexpr Cause kCauses[] = {{&StepParts::compute, "computes ", ""},
                             {&StepParts::slowdown, "loses ", " to messages that slow its computation"},
                             {&StepParts::exchange, "waits ", " for activations of its tensor groups"},
                             {&StepParts::gathers, "waits ", " for gathers of parameters"},
                             {&StepParts::reductions, "waits ", " for sums of gradients"},
                             {&StepParts::messages, "waits ", " for messages between stages"},
                             {&StepParts::bubble, "is idle for ", " while other stages compute"},
                             {&StepParts::accumulation, "adds gradients of micro-batches for ", ""},
                             {&StepParts::optimizer, "updates weights for ", ""},
                             {&StepParts::data, "waits ", " for images"},
                             {&StepParts::rest, "spends ", " on the rest of the step"}};

/// What a plan spends on a cause, and the winner, for as many images.
struct Loss {
  const Cause* cause = nullptr;
  double seconds = 0, of_winner = 0;
  double more() const { return seconds - of_winner; }
};

/// Those with the most seconds more than the winner first.
std::vector<Loss> losses_of(const FoundPlan& plan, const FoundPlan& winner) {
  const double scale = static_cast<double>(winner.batch) / static_cast<double>(plan.batch);
  std::vector<Loss> losses;
  for (const Cause& cause : kCauses) {
    const Loss loss{&cause, scale * parts_of(plan).*cause.part, parts_of(winner).*cause.part};
    if (loss.more() > 0) losses.push_back(loss);
  }
  std::ranges::stable_sort(losses, std::greater<>(), &Loss::more);
  return losses;
}

std::string text_of(const Loss& loss, const FoundPlan& plan, const FoundPlan& winner) {
  const Cause& cause = *loss.cause;
  std::string words = concat(cause.before, seconds_text(loss.seconds), cause.after);
  if (cause.part == &StepParts::bubble) {
    const double step = plan.seconds_per_image() * static_cast<double>(winner.batch);
    words += concat(", ", percent_text(loss.seconds / step), " of its step");
  }
  words += concat(" (the winner: ", seconds_text(loss.of_winner), ")");
  const bool again = cause.part == &StepParts::compute && recomputes(plan) && !recomputes(winner);
  return again ? words + " because it computes activations again" : words;
}

/// The memory of the stage that needs most.
const plan::Memory& most_of(const FoundPlan& plan) {
  return *std::ranges::max_element(plan.memory, {}, &plan::Memory::total);
}

const char* largest_part(const plan::Memory& memory) {
  struct MemoryUse {
    double bytes;
    const char* name;
  };
  const MemoryUse uses[] = {
      {memory.states, "weights and optimizer states"}, {memory.activations, "activations"},
      {memory.gathered, "gathered parameters"},        {memory.gradients, "gradients"},
      {memory.recording, "recording CUDA graphs"},     {memory.program, "the program"}};
  return std::ranges::max_element(uses, {}, &MemoryUse::bytes)->name;
}

/// Why the space has no plan of a kind at all.
std::string why_none(const Profile& profile, const SearchQuestion& question, const PlanKind& kind) {
  if (question.ranks == 1) return "one rank has no other rank to share with";
  plan::UnitPlan cut_block;
  cut_block.layout.tensor = 2;
  const bool cuts = kind.holds(1, cut_block) || kind.holds(2, cut_block);
  if (cuts && kind.holds(2, cut_block) && question.ranks < 4)
    return "it needs at least 4 ranks, 2 stages of 2";
  if (cuts && std::ranges::all_of(profile.units, [](const UnitTimes& unit) { return unit.tensor == 1; }))
    return "the profile has no times of units that ranks compute together";
  return "no plan of this kind divides the ranks and the batch, or what the recipe fixes excludes it";
}

void run_all(const std::vector<std::function<void()>>& searches) {
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  std::atomic<size_t> next = 0;
  run_on_threads(static_cast<int64_t>(std::min(cores, searches.size())), [&](int64_t) {
    for (size_t i = next++; i < searches.size(); i = next++) searches[i]();
  });
}

class Explainer {
 public:
  Explainer(const Profile& profile, const SearchQuestion& question, const SearchResult& found)
      : profile_(profile), question_(question), found_(found), winner_(found.best.front()) {
    question_.batches = {winner_.batch};
  }

  /// No search needs another's answer: as many as there are cores go on at the same time.
  Explanation run() const {
    Explanation explanation;
    std::vector<BestOfKind> kinds(std::size(kPlanKinds));
    std::vector<std::function<void()>> searches;
    for (size_t i = 0; i < kinds.size(); ++i)
      searches.emplace_back([&, i] { kinds[i] = best_of(kPlanKinds[i]); });
    add_variations(&searches, &explanation.variations);
    for (const int64_t ranks : rank_counts(question_.ranks, ranks_of_host(profile_, question_.ranks_of_host)))
      explanation.counts.push_back({.ranks = ranks});
    for (RankCount& count : explanation.counts)
      if (count.ranks != question_.ranks) searches.emplace_back([&] { count = with_ranks(count.ranks); });
    run_all(searches);
    explanation.counts.back() = with_all_ranks(kinds);
    compare_counts(&explanation);
    if (const FoundPlan* second = runner_up(kinds))
      explanation.alternatives.push_back(compared(kRunnerUp, *second));
    for (BestOfKind& kind : kinds) explanation.alternatives.push_back(std::move(kind.best));
    return explanation;
  }

 private:
  struct BestOfKind {
    Alternative best;
    std::vector<FoundPlan> found;  // that fit
  };

  void add_variations(std::vector<std::function<void()>>* searches,
                      std::vector<Variation>* variations) const {
    variations->resize(4);
    searches->emplace_back([this, variations] { variations->at(0) = with_links(0.5); });
    searches->emplace_back([this, variations] { variations->at(1) = with_links(2); });
    searches->emplace_back([this, variations] { variations->at(2) = with_memory(0.75); });
    searches->emplace_back([this, variations] { variations->at(3) = with_memory(1.25); });
  }

  /// A search looks at few plans that are slower than its best one, so those of the kinds count as well.
  const FoundPlan* runner_up(const std::vector<BestOfKind>& kinds) const {
    const FoundPlan* second = nullptr;
    const auto look_at = [&](const FoundPlan& plan) {
      if (has_same_blocks(plan, winner_)) return;
      if (second == nullptr || plan.seconds_per_image() < second->seconds_per_image()) second = &plan;
    };
    for (const FoundPlan& plan : found_.best) look_at(plan);
    for (const BestOfKind& kind : kinds)
      for (const FoundPlan& plan : kind.found) look_at(plan);
    return second;
  }

  Alternative compared(const std::string& name, const FoundPlan& plan) const {
    return {name, plan, 0, why_slower(plan, winner_)};
  }

  BestOfKind best_of(const PlanKind& kind) const {
    SearchQuestion question = question_;
    question.layer_by_layer = false;
    question.allowed = [&](int64_t stages, const plan::UnitPlan& block) {
      return kind.holds(stages, block) && (!question_.allowed || question_.allowed(stages, block));
    };
    const SearchResult result = search(profile_, question);
    if (!result.best.empty()) return {compared(kind.name, result.best.front()), result.best};
    if (result.smallest) {
      const double missing = result.smallest->most_memory() - question_.memory;
      return {{kind.name, result.smallest, missing, why_too_large(*result.smallest, question_.memory)}, {}};
    }
    const std::string why =
        result.timed_out ? "none was found within the time limit" : why_none(profile_, question_, kind);
    return {{kind.name, std::nullopt, 0, why}, {}};
  }

  Variation with_links(double factor) const {
    return varied(factor < 1 ? "links half as fast" : "links twice as fast", with_bandwidth(profile_, factor),
                  question_);
  }

  Variation with_memory(double factor) const {
    SearchQuestion question = question_;
    question.memory *= factor;
    return varied(
        concat(factor < 1 ? "25 % less" : "25 % more", " memory (", human_bytes(question.memory), ")"),
        profile_, question);
  }

  Variation varied(const std::string& change, const Profile& profile, SearchQuestion question) const {
    Variation variation{.change = change};
    FoundPlan kept = winner_;
    if (kept.most_memory() <= question.memory) {
      kept.time = predict_step(profile, kept.question);
      variation.kept_seconds = kept.time.seconds;
    }
    const SearchResult result = search(profile, question);
    if (!result.best.empty()) variation.best = result.best.front();
    const bool keeps = variation.kept_seconds &&
                       (!variation.best || kept.time.seconds <= (1 + kAlike) * variation.best->time.seconds);
    if (keeps) variation.best = kept;
    variation.is_other = variation.best && !keeps;
    return variation;
  }

  RankCount with_ranks(int64_t ranks) const {
    SearchQuestion question = question_;
    question.ranks = ranks;
    question.layer_by_layer = false;
    RankCount count{.ranks = ranks};
    if (frames_of(ProfileTables(profile_), question).empty()) {
      count.reason =
          concat("the batch of ", winner_.batch, " images, with what the recipe fixes, cannot be divided");
      return count;
    }
    const SearchResult result = search(profile_, question);
    if (!result.best.empty()) take_plan(result.best.front(), &count);
    if (result.best.empty())
      count.reason = result.smallest ? why_too_large(*result.smallest, question.memory)
                                     : "no plan was found within the time limit";
    return count;
  }

  static void take_plan(const FoundPlan& plan, RankCount* count) {
    count->best = plan;
    count->images_per_second = 1 / plan.seconds_per_image();
    count->images_per_rank_hour = 3600 * count->images_per_second / static_cast<double>(count->ranks);
  }

  /// The kinds are all plans whose blocks are alike.
  RankCount with_all_ranks(const std::vector<BestOfKind>& kinds) const {
    RankCount count{.ranks = question_.ranks};
    const FoundPlan* fastest = nullptr;
    for (const BestOfKind& kind : kinds) {
      if (kind.found.empty()) continue;
      const FoundPlan& best = kind.found.front();
      if (fastest == nullptr || best.seconds_per_image() < fastest->seconds_per_image()) fastest = &best;
    }
    if (fastest != nullptr) take_plan(*fastest, &count);
    if (fastest == nullptr) count.reason = "no plan fits whose blocks are all alike";
    return count;
  }

  void compare_counts(Explanation* explanation) const {
    const RankCount* base = nullptr;
    for (const RankCount& count : explanation->counts) {
      if (!count.best) continue;
      if (base == nullptr || count.ranks == ranks_of_host(profile_, question_.ranks_of_host)) base = &count;
    }
    if (base == nullptr) return;
    explanation->base_ranks = base->ranks;
    const double most = base->images_per_rank_hour;
    for (RankCount& count : explanation->counts) count.efficiency = count.images_per_rank_hour / most;
  }

  const Profile& profile_;
  SearchQuestion question_;  // with the winner's batch alone
  const SearchResult& found_;
  const FoundPlan& winner_;
};

}  // namespace

std::string seconds_text(double seconds) {
  struct Unit {
    double size;
    const char* name;
  };
  constexpr Unit kUnits[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}};
  constexpr double kRounds = 0.9995;  // to the next unit
  if (seconds <= 0) return "0 s";
  const Unit* unit = kUnits;
  while (unit != std::end(kUnits) - 1 && seconds < kRounds * unit->size) ++unit;
  const double value = seconds / unit->size;
  char text[32];
  std::snprintf(text, sizeof text,
                value >= 99.95   ? "%.0f %s"
                : value >= 9.995 ? "%.1f %s"
                                 : "%.2f %s",
                value, unit->name);
  return text;
}

std::string why_slower(const FoundPlan& plan, const FoundPlan& winner) {
  if (is_same_plan(plan, winner)) return "this is the winner";
  const double slower = plan.seconds_per_image() / winner.seconds_per_image() - 1;
  if (slower < -kAlike)
    return concat(percent_text(-slower), " faster than the winner, whose search ended at its time limit");
  if (slower < kAlike) return "as fast as the winner";
  const std::vector<Loss> losses = losses_of(plan, winner);
  double all = 0;
  for (const Loss& loss : losses) all += loss.more();
  std::vector<std::string> words;
  for (const Loss& loss : losses) {
    if (words.size() == kMostCauses || (!words.empty() && loss.more() < kSmallCause * all)) break;
    words.push_back(text_of(loss, plan, winner));
  }
  return concat(percent_text(slower), " slower: ", join(words, "; "));
}

std::string why_too_large(const FoundPlan& plan, double memory) {
  const double most = plan.most_memory();
  return concat("needs ", human_bytes(most), " of a rank, ", human_bytes(most - memory),
                " more than there is; most of it for ", largest_part(most_of(plan)));
}

namespace {

/// What a unit of UnitTimes::peers waits according to the links of `tables`, whose units have none.
UnitCost cost_on_links(const ProfileTables& tables, const UnitTimes& unit) {
  const Profile& profile = tables.profile;
  const StepQuestion question{.plan = plan::plan_of_blocks(profile.model, unit.tensor, unit.tensor,
                                                           unit.recompute, unit.peers->keep_gathered),
                              .inputs = {.compute_bytes = profile.provenance.compute == "fp32" ? 4 : 2},
                              .batch = unit.batch,
                              .pieces = unit.peers->pieces,
                              .ranks_of_host = unit.tensor,
                              .shared_memory = unit.peers->transport == "shared memory"};
  LinkTable links(profile, question.plan, question.ranks_of_host, question.shared_memory);
  const auto kind = std::ranges::find(tables.kinds, unit.kind);
  return unit_cost(tables, question, links, 0, static_cast<size_t>(kind - tables.kinds.begin()));
}

Profile without_peers(Profile profile) {
  for (UnitTimes& unit : profile.units) unit.peers.reset();
  return profile;
}

/// Lets units of `after` wait for their peers as much longer as its links say, beside those of `before`.
void follow_links(const Profile& before, Profile* after) {
  const Profile profile_before = without_peers(before), profile_after = without_peers(*after);
  const ProfileTables tables_before(profile_before), tables_after(profile_after);
  for (UnitTimes& unit : after->units) {
    if (!unit.peers) continue;
    const UnitCost was = cost_on_links(tables_before, unit), is = cost_on_links(tables_after, unit);
    unit.peers->forward = std::max(unit.peers->forward + is.exchange_forward - was.exchange_forward, 0.0);
    unit.peers->backward = std::max(unit.peers->backward + is.exchange_backward - was.exchange_backward, 0.0);
  }
}

}  // namespace

Profile with_bandwidth(Profile profile, double factor) {
  const Profile before = profile;
  for (LinkTimes& link : profile.links) {
    link.bytes_per_second *= factor;
    for (LinkTimes::Sample& sample : link.samples)
      sample.seconds += std::max(sample.seconds - link.latency, 0.0) * (1 / factor - 1);
    for (LinkTimes::InPieces& in_pieces : link.in_pieces) {
      for (LinkTimes::InPieces::Sample& sample : in_pieces.samples) {
        const double more = std::max(sample.seconds - link.latency, 0.0) * (1 / factor - 1);
        sample.seconds += more;
        sample.exposed = std::max(sample.exposed + more / static_cast<double>(in_pieces.pieces), 0.0);
      }
    }
  }
  follow_links(before, &profile);
  return profile;
}

std::vector<int64_t> rank_counts(int64_t ranks, int64_t ranks_of_host) {
  std::set<int64_t> counts = {ranks};
  for (int64_t count = 1; count < ranks; count *= 2) counts.insert(count);
  if (ranks_of_host < ranks) counts.insert(ranks_of_host);
  return {counts.begin(), counts.end()};
}

int64_t most_ranks_worth(const std::vector<RankCount>& counts, double share) {
  double most = 0;
  for (const RankCount& count : counts) most = std::max(most, count.images_per_rank_hour);
  int64_t ranks = 0;
  for (const RankCount& count : counts) {
    if (count.best && count.images_per_rank_hour >= share * most) ranks = count.ranks;
  }
  return ranks;
}

Explanation explain(const Profile& profile, const SearchQuestion& question, const SearchResult& found) {
  TESSERA_CHECK(!found.best.empty(), "there is no plan to explain");
  return Explainer(profile, question, found).run();
}

}  // namespace tessera::planner
