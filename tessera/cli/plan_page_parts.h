// SPDX-License-Identifier: Apache-2.0
// The parts of plan.html, each a piece of HTML. Pure. Private to plan_page.cpp and its files.
#pragma once

#include <string>
#include <vector>

#include "tessera/cli/plan_explanation.h"

namespace tessera::cli {

/// Numbers, sentences, commands and words for readers who have not planned a layout before.
std::string summary_part(const ExplainedPlan& explained);
/// The winner and the plans that it is compared with.
std::string plans_part(const ExplainedPlan& explained);
/// Mesh and schedule.
std::string step_part(const ExplainedPlan& explained);
/// Units, ranks, memory and seconds of every stage.
std::string stages_part(const ExplainedPlan& explained);
/// The layout of every unit.
std::string layout_part(const ExplainedPlan& explained);
std::string variations_part(const ExplainedPlan& explained);
/// Images per rank-hour, as table and chart.
std::string counts_part(const ExplainedPlan& explained);
/// Times and links of the profile and where they are from; what was assumed and left out.
std::string constants_part(const ExplainedPlan& explained);
std::string plan_file_part(const ExplainedPlan& explained);

/// A piece of a bar.
struct BarPiece {
  std::string name;
  const char* colour;  // class of the page
  int place = 0;       // among the pieces of a bar
  double value = 0;
  std::string text;  // the value for people
};
/// Pieces beside each other; `whole`: the value that fills the bar.
std::string bar(const std::vector<BarPiece>& pieces, double whole);
/// What a step of a stage is spent on, without what takes no time.
std::vector<BarPiece> pieces_of(const planner::StepParts& parts);
std::vector<BarPiece> pieces_of(const plan::Memory& memory);
/// Colours and names of the pieces that occur.
std::string bar_legend(const std::string& title, const std::vector<std::vector<BarPiece>>& bars);

/// Rows of cells; a cell is HTML. A cell of a numeric column is set right.
struct TableColumn {
  const char* name;
  bool is_number = false;
};
std::string table(const std::vector<TableColumn>& columns, const std::vector<std::vector<std::string>>& rows);

}  // namespace tessera::cli
