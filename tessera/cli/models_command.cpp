// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/models_command.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/mesh/pieces.h"
#include "tessera/plan/memory.h"

namespace tessera::cli {
namespace {

struct Row {
  std::string name;
  int64_t parameters = 0;
  double flops = 0;
  plan::Memory memory;
};

Row make_row(const ModelsQuery& query, const arch::NamedModel& size) {
  arch::check(size.config);
  auto layout = plan::uniform_plan(size.config, query.ranks, query.level, query.recompute, 1);
  plan::set_tensor(&layout, size.config, {.tensor = query.tensor}, /*keep_gathered=*/true);
  const plan::CostInputs inputs{.compute_bytes = query.bf16 ? 2 : 4,
                                .piece_values = mesh::kPieceValues,
                                .pieces_at_once = mesh::kPiecesAtOnce};
  return {size.name, arch::parameter_count(size.config), arch::forward_flops(size.config),
          plan::predict_memory(size.config, layout, inputs, query.batch)};
}

/// Has it layers that tensor parallelism cuts?
bool is_cuttable(const arch::ModelConfig& config) {
  return std::ranges::any_of(arch::parameters(config), &arch::ParameterSpec::is_cut);
}

void check_tensor(const ModelsQuery& query) {
  check_at_least_1("cli.models", "--tensor", query.tensor);
  const auto refuse = [&](const std::string& why, const std::string& expected) {
    user_error(
        {.where = "cli.models", .problem = concat("--tensor is ", query.tensor, why), .expected = expected});
  };
  if (query.ranks % query.tensor != 0) refuse("", concat("a divisor of --ranks ", query.ranks));
  if (query.tensor > 1 && query.name && !is_cuttable(arch::model_config(*query.name)))
    refuse(concat(", but tensor parallelism cuts nothing of ", *query.name), "1");
}

std::vector<Row> make_rows(const ModelsQuery& query) {
  check_at_least_1("cli.models", "--batch", query.batch);
  check_tensor(query);
  std::vector<Row> rows;
  if (query.name) {
    rows.push_back(make_row(query, {*query.name, arch::model_config(*query.name)}));
  } else {
    for (const auto& size : arch::model_ladder()) {
      if (query.tensor == 1 || is_cuttable(size.config)) rows.push_back(make_row(query, size));
    }
  }
  return rows;
}

std::string gigaflops(double flops) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, flops < 1e11 ? "%.2f" : "%.1f", flops / 1e9);
  return buffer;
}

using Cells = std::array<std::string, 8>;

Cells cells(const Row& row) {
  return {row.name,
          human_count(row.parameters),
          gigaflops(row.flops),
          human_bytes(row.memory.states),
          human_bytes(row.memory.gradients),
          human_bytes(row.memory.gathered),
          human_bytes(row.memory.activations),
          human_bytes(row.memory.total())};
}

void print_table(const ModelsQuery& query, const std::vector<Row>& rows, std::ostream& out) {
  std::vector<Cells> lines = {{"model", "parameters", "GFLOP/image", "states", "gradients", "gathered",
                               "activations", "memory/rank"}};
  for (const auto& row : rows) lines.push_back(cells(row));
  std::array<size_t, std::tuple_size_v<Cells>> widths{};
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths.at(i) = std::max(widths.at(i), line.at(i).size());
  }
  for (const auto& line : lines) {
    out << line[0] << std::string(widths[0] - line[0].size(), ' ');
    for (size_t i = 1; i < line.size(); ++i) {
      out << "  " << std::string(widths.at(i) - line.at(i).size(), ' ') << line.at(i);
    }
    out << '\n';
  }
  out << "GFLOP/image: forward; a training step is up to 3 x this. Memory: training with AdamW, with 16 MiB "
         "that the program itself grows by, "
      << query.ranks << (query.ranks == 1 ? " rank, " : " ranks, ")
      << (query.tensor == 1 ? "" : concat("tensor-parallel groups of ", query.tensor, ", "))
      << plan::to_string(query.level) << ", " << query.batch << (query.batch == 1 ? " image" : " images")
      << " per rank, compute " << (query.bf16 ? "bf16" : "fp32")
      << (query.recompute ? ", with recompute.\n" : ", without recompute.\n");
}

void print_json(const ModelsQuery& query, const std::vector<Row>& rows, std::ostream& out) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const auto bytes = [](double value) { return static_cast<int64_t>(value); };
  for (const auto& row : rows) {
    list.push_back({{"name", row.name},
                    {"parameters", row.parameters},
                    {"forward_flops", row.flops},
                    {"ranks", query.ranks},
                    {"tensor", query.tensor},
                    {"level", plan::to_string(query.level)},
                    {"batch_per_rank", query.batch},
                    {"recompute", query.recompute},
                    {"compute", query.bf16 ? "bf16" : "fp32"},
                    {"states_bytes", bytes(row.memory.states)},
                    {"gradients_bytes", bytes(row.memory.gradients)},
                    {"gathered_bytes", bytes(row.memory.gathered)},
                    {"activations_bytes", bytes(row.memory.activations)},
                    {"program_bytes", bytes(row.memory.program)},
                    {"memory_bytes", bytes(row.memory.total())}});
  }
  out << list.dump(2) << '\n';
}

}  // namespace

void print_models(const ModelsQuery& query, std::ostream& out) {
  const auto rows = make_rows(query);
  query.json ? print_json(query, rows, out) : print_table(query, rows, out);
}

}  // namespace tessera::cli
