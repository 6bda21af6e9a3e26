// SPDX-License-Identifier: Apache-2.0
// `tessera compare --layouts A B RECIPE`: reads the layouts, compares them, prints the report.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/monitor/number.h"
#include "tessera/plan/levels_text.h"
#include "tessera/recipe/default_source.h"
#include "tessera/train/commands.h"
#include "tessera/train/compare_layouts.h"

namespace tessera::train {
namespace {

const char* status_of(const TensorDifference& one) { return one.differs ? "differs" : "agrees"; }

nlohmann::ordered_json as_json(const TensorDifference& one) {
  nlohmann::ordered_json json = {{"tensor", one.title}, {"largest_difference", one.largest},
                                 {"index", one.index},  {"a", one.a},
                                 {"b", one.b},          {"status", status_of(one)}};
  if (!one.fault.empty()) json["fault"] = one.fault;
  return json;
}

nlohmann::ordered_json as_json(const TensorDifference* one) {
  return one == nullptr ? nullptr : as_json(*one);
}

void print_json(const LayoutComparison& found, const Layout& a, const Layout& b,
                const CompareLayoutsJob& job) {
  const LayoutReport& report = found.report;
  const auto layout = [](const Layout& one) {
    return nlohmann::ordered_json{
        {"layout", one.text}, {"ranks", one.plan.world}, {"plan", plan::levels_text(one.plan)}};
  };
  nlohmann::ordered_json json = {{"agree", report.first_difference() == nullptr},
                                 {"a", layout(a)},
                                 {"b", layout(b)},
                                 {"steps", job.steps},
                                 {"batch", found.batch},
                                 {"precision", found.precision},
                                 {"tolerance", report.tolerance},
                                 {"tensors", report.tensors.size()},
                                 {"differing", report.differing()},
                                 {"first_difference", as_json(report.first_difference())},
                                 {"largest_difference", as_json(report.largest())},
                                 {"notes", found.notes}};
  if (job.all) {
    json["all"] = nlohmann::ordered_json::array();
    for (const TensorDifference& one : report.tensors) json["all"].push_back(as_json(one));
  }
  std::cout << json_text(json, 2) << std::endl;
}

void print_table(const std::vector<const TensorDifference*>& rows, bool float64) {
  size_t title = 6, index = 2;
  for (const TensorDifference* one : rows) {
    title = std::max(title, one->title.size());
    index = std::max(index, index_text(*one).size());
  }
  const int title_width = static_cast<int>(title), index_width = static_cast<int>(index);
  const int value_width = float64 ? 24 : 16;
  std::printf("%-*s %10s  %-*s %*s %*s  %s\n", title_width, "tensor", "difference", index_width, "at",
              value_width, "A", value_width, "B", "status");
  for (const TensorDifference* one : rows) {
    std::printf("%-*s %10s  %-*s %*s %*s  %s%s\n", title_width, one->title.c_str(),
                monitor::print("%.2e", one->largest).c_str(), index_width, index_text(*one).c_str(),
                value_width, value_text(one->a, float64).c_str(), value_width,
                value_text(one->b, float64).c_str(), status_of(*one),
                one->fault.empty() ? "" : concat(": ", one->fault).c_str());
  }
  std::printf("\n");
}

void print_conclusion(const LayoutReport& report, bool float64) {
  const TensorDifference* first = report.first_difference();
  const std::string count = human_count(static_cast<int64_t>(report.tensors.size()));
  if (first == nullptr) {
    const TensorDifference* largest = report.largest();
    std::printf("layouts agree: %s tensors, largest difference %s at %s\n", count.c_str(),
                monitor::print("%.2e", largest == nullptr ? 0.0 : largest->largest).c_str(),
                largest == nullptr ? "none" : largest->title.c_str());
    return;
  }
  std::printf("%s of %s tensors differ\n", human_count(report.differing()).c_str(), count.c_str());
  std::printf("first difference: %s\n", text_of(*first, float64).c_str());
}

void print_text(const LayoutComparison& found, const Layout& a, const Layout& b,
                const CompareLayoutsJob& job) {
  const LayoutReport& report = found.report;
  for (const auto& [name, layout] : {std::pair("A", &a), std::pair("B", &b)}) {
    std::printf("%s: %s (%s on %s %s)\n", name, layout->text.c_str(), plan::levels_text(layout->plan).c_str(),
                human_count(layout->plan.world).c_str(), layout->plan.world == 1 ? "rank" : "ranks");
  }
  std::printf("%s %s of %s samples in %s, tolerance %g\n", human_count(job.steps).c_str(),
              job.steps == 1 ? "step" : "steps", human_count(found.batch).c_str(), found.precision.c_str(),
              report.tolerance);
  for (const std::string& note : found.notes) std::printf("note: %s\n", note.c_str());
  std::printf("\n");
  std::vector<const TensorDifference*> rows;
  for (const TensorDifference& one : report.tensors) {
    if (job.all) rows.push_back(&one);
  }
  if (const TensorDifference* first = report.first_difference(); !job.all && first != nullptr) rows = {first};
  if (!rows.empty()) print_table(rows, job.float64);
  print_conclusion(report, job.float64);
}

}  // namespace

int compare_layouts_command(const CompareLayoutsJob& job) {
  const MakeRecipe make_recipe = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = job.sets;
    sets.insert(sets.end(), more.begin(), more.end());
    recipe::Recipe recipe = recipe::read_recipe(job.recipe, sets);
    recipe::check_default_source(recipe, job.recipe);
    return recipe;
  };
  const Layout a = read_layout(job.a, make_recipe), b = read_layout(job.b, make_recipe);
  if (job.files != nullptr) job.files->set_limit(recipe::timeout_of(a.recipe.run));
  Log log(/*console=*/true, nullptr);
  CompareOptions options;
  options.steps = job.steps;
  options.float64 = job.float64;
  options.tolerance = job.tolerance;
  const LayoutComparison found = compare_layouts(a, b, options, log);
  job.json ? print_json(found, a, b, job) : print_text(found, a, b, job);
  return found.report.first_difference() == nullptr ? static_cast<int>(kExitDone) : kExitDifferent;
}

}  // namespace tessera::train
