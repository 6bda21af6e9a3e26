// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/plan_page_parts.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"

namespace tessera::cli {
namespace {

using monitor::escape_html;

void add_piece(std::vector<BarPiece>* pieces, BarPiece piece) {
  if (piece.value > 0) pieces->push_back(std::move(piece));
}

}  // namespace

std::string bar(const std::vector<BarPiece>& pieces, double whole) {
  std::string out = "<div class=\"stack\">";
  for (const BarPiece& piece : pieces) {
    out += concat("<i class=\"", piece.colour,
                  "\" style=\"width:", monitor::print("%.2f", 100 * piece.value / whole), "%\" title=\"",
                  escape_html(concat(piece.name, ": ", piece.text)), "\"></i>");
  }
  return out + "</div>";
}

std::vector<BarPiece> pieces_of(const planner::StepParts& parts) {
  struct Named {
    const char *name, *colour;
    double seconds;
  };
  const Named all[] = {{"compute", "blue", parts.compute},
                       {"slowed by messages", "pale-blue", parts.slowdown},
                       {"wait: exchange of activations", "violet", parts.exchange},
                       {"wait: gathers of parameters", "green", parts.gathers},
                       {"wait: sums of gradients", "orange", parts.reductions},
                       {"wait: messages between stages", "teal", parts.messages},
                       {"bubble", "hatch", parts.bubble},
                       {"adding gradients", "pink", parts.accumulation},
                       {"optimizer", "brown", parts.optimizer},
                       {"wait: images", "olive", parts.data},
                       {"rest", "grey", parts.rest}};
  std::vector<BarPiece> pieces;
  for (const Named& one : all) {
    const auto place = static_cast<int>(&one - all);
    add_piece(&pieces, {one.name, one.colour, place, one.seconds, planner::seconds_text(one.seconds)});
  }
  return pieces;
}

std::vector<BarPiece> pieces_of(const plan::Memory& memory) {
  std::vector<BarPiece> pieces;
  int place = 0;
  const auto add = [&](const char* name, const char* colour, double bytes) {
    add_piece(&pieces, {name, colour, place++, bytes, human_bytes(bytes)});
  };
  add("weights and optimizer states", "blue", memory.states);
  add("gradients", "orange", memory.gradients);
  add("gathered parameters", "green", memory.gathered);
  add("activations", "violet", memory.activations);
  add("program", "grey", memory.program);
  if (memory.recording > 0) add("recording CUDA graphs", "red", memory.recording);
  return pieces;
}

std::string bar_legend(const std::string& title, const std::vector<std::vector<BarPiece>>& bars) {
  std::map<int, const BarPiece*> seen;
  for (const std::vector<BarPiece>& pieces : bars)
    for (const BarPiece& piece : pieces) seen.emplace(piece.place, &piece);
  std::string out = concat("<p class=\"keys\"><span>", title, "</span>");
  for (const auto& [place, piece] : seen)
    out += concat("<span><i class=\"", piece->colour, "\"></i>", escape_html(piece->name), "</span>");
  return out + "</p>\n";
}

std::string table(const std::vector<TableColumn>& columns,
                  const std::vector<std::vector<std::string>>& rows) {
  const auto tag = [&](size_t i) { return columns[i].is_number ? " class=\"n\">" : ">"; };
  std::string out = "<div class=\"scroll\"><table class=\"plain\"><thead><tr>";
  for (size_t i = 0; i < columns.size(); ++i) out += concat("<th", tag(i), columns[i].name, "</th>");
  out += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) out += concat("<td", tag(i), row[i], "</td>");
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace tessera::cli
