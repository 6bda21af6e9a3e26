// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/metrics_row.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/monitor/number.h"

namespace tessera::monitor {
namespace {

using Json = nlohmann::ordered_json;

std::string shortest_or_none(const std::optional<double>& value) { return value ? shortest(*value) : ""; }

/// NaN stands for what is not known, not for a number that went wrong.
std::optional<double> known(double value) { return std::isnan(value) ? std::nullopt : std::optional(value); }

double number(const Json& row, const char* key) {
  const auto& value = row.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

/// Of a key that files of older runs lack.
double number_or_unknown(const Json& row, const char* key) {
  return row.contains(key) ? number(row, key) : std::numeric_limits<double>::quiet_NaN();
}

StepMetrics step_from(const Json& row) {
  StepMetrics m;
  m.step = row.at("step").get<int64_t>();
  m.epoch = number(row, "epoch");
  m.loss = number(row, "loss");
  m.learning_rate = number(row, "learning_rate");
  m.gradient_norm = number(row, "gradient_norm");
  m.images_per_second = number(row, "images_per_second");
  m.tflops = number(row, "tflops");
  m.data_wait = number(row, "data_wait");
  m.comm_wait = number(row, "comm_wait");
  m.memory_bytes = number(row, "memory_bytes");
  m.seconds = number(row, "seconds");
  m.peak_share = number_or_unknown(row, "peak_share");
  m.seconds_left = number_or_unknown(row, "seconds_left");
  m.device_bytes = number_or_unknown(row, "device_bytes");
  m.device_peak_bytes = number_or_unknown(row, "device_peak_bytes");
  m.bubble = number_or_unknown(row, "bubble");
  return m;
}

EvalMetrics eval_from(const Json& row) {
  EvalMetrics m;
  m.step = row.at("step").get<int64_t>();
  m.epoch = number(row, "epoch");
  m.top1 = number(row, "top1");
  m.top5 = number(row, "top5");
  m.loss = number(row, "loss");
  m.samples = row.at("samples").get<int64_t>();
  m.seconds = number(row, "seconds");
  if (row.contains("top1_ema")) m.top1_ema = number(row, "top1_ema");
  if (row.contains("loss_ema")) m.loss_ema = number(row, "loss_ema");
  return m;
}

template <typename Row>
void put(std::vector<Row>& rows, const Row& row, int64_t last_step) {
  while (!rows.empty() && rows.back().step >= row.step) rows.pop_back();
  if (row.step <= last_step) rows.push_back(row);
}

void parse_line(std::string_view line, int64_t last_step, History& history) {
  try {
    const Json row = Json::parse(line);
    const std::string kind = row.at("kind").get<std::string>();
    if (kind == "step") {
      put(history.steps, step_from(row), last_step);
    } else if (kind == "eval") {
      put(history.evals, eval_from(row), last_step);
    } else {
      ++history.damaged;
    }
  } catch (const Json::exception&) {
    ++history.damaged;
  }
}

template <typename PutRow>
void in_order(const History& history, const PutRow& put_row) {
  auto eval = history.evals.begin();
  for (const auto& step : history.steps) {
    for (; eval != history.evals.end() && eval->step < step.step; ++eval) put_row(*eval);
    put_row(step);
  }
  for (; eval != history.evals.end(); ++eval) put_row(*eval);
}

}  // namespace

std::string csv_header() {
  return "kind,step,epoch,loss,learning_rate,gradient_norm,images_per_second,tflops,data_wait,comm_wait,"
         "memory_bytes,top1,top5,samples,seconds,top1_ema,loss_ema,peak_share,seconds_left,device_bytes,"
         "device_peak_bytes,bubble\n";
}

std::string csv_row(const StepMetrics& m) {
  std::string row = "step," + std::to_string(m.step);
  for (const double value : {m.epoch, m.loss, m.learning_rate, m.gradient_norm, m.images_per_second, m.tflops,
                             m.data_wait, m.comm_wait, m.memory_bytes}) {
    row += "," + shortest(value);
  }
  return row + ",,,," + shortest(m.seconds) + ",,," + shortest_or_none(known(m.peak_share)) + "," +
         shortest_or_none(known(m.seconds_left)) + "," + shortest_or_none(known(m.device_bytes)) + "," +
         shortest_or_none(known(m.device_peak_bytes)) + "," + shortest_or_none(known(m.bubble)) + "\n";
}

std::string csv_row(const EvalMetrics& m) {
  return "eval," + std::to_string(m.step) + "," + shortest(m.epoch) + "," + shortest(m.loss) + ",,,,,,,," +
         shortest(m.top1) + "," + shortest(m.top5) + "," + std::to_string(m.samples) + "," +
         shortest(m.seconds) + "," + shortest_or_none(m.top1_ema) + "," + shortest_or_none(m.loss_ema) +
         ",,,,,\n";
}

std::string json_row(const StepMetrics& m) {
  Json row = {{"kind", "step"},
              {"step", m.step},
              {"epoch", m.epoch},
              {"loss", m.loss},
              {"learning_rate", m.learning_rate},
              {"gradient_norm", m.gradient_norm},
              {"images_per_second", m.images_per_second},
              {"tflops", m.tflops},
              {"data_wait", m.data_wait},
              {"comm_wait", m.comm_wait},
              {"memory_bytes", m.memory_bytes},
              {"seconds", m.seconds},
              {"peak_share", m.peak_share},
              {"seconds_left", m.seconds_left}};
  if (known(m.device_bytes)) {
    row["device_bytes"] = m.device_bytes;
    row["device_peak_bytes"] = m.device_peak_bytes;
  }
  if (known(m.bubble)) row["bubble"] = m.bubble;
  return row.dump() + "\n";
}

std::string json_row(const EvalMetrics& m) {
  Json row = {{"kind", "eval"}, {"step", m.step}, {"epoch", m.epoch},     {"top1", m.top1},
              {"top5", m.top5}, {"loss", m.loss}, {"samples", m.samples}, {"seconds", m.seconds}};
  if (m.top1_ema) row["top1_ema"] = *m.top1_ema;
  if (m.loss_ema) row["loss_ema"] = *m.loss_ema;
  return row.dump() + "\n";
}

formats::EventScalars scalars(const StepMetrics& m) {
  formats::EventScalars points = {{"train/loss", m.loss},
                                  {"train/learning_rate", m.learning_rate},
                                  {"train/gradient_norm", m.gradient_norm},
                                  {"train/epoch", m.epoch},
                                  {"speed/images_per_second", m.images_per_second},
                                  {"speed/tflops", m.tflops},
                                  {"speed/data_wait", m.data_wait},
                                  {"speed/comm_wait", m.comm_wait},
                                  {"memory/resident_bytes", m.memory_bytes}};
  if (const auto share = known(m.peak_share)) points.emplace_back("speed/peak_share", *share);
  if (const auto left = known(m.seconds_left)) points.emplace_back("speed/seconds_left", *left);
  if (known(m.device_bytes)) {
    points.emplace_back("memory/device_bytes", m.device_bytes);
    points.emplace_back("memory/device_peak_bytes", m.device_peak_bytes);
  }
  if (const auto bubble = known(m.bubble)) points.emplace_back("speed/bubble", *bubble);
  return points;
}

formats::EventScalars scalars(const EvalMetrics& m) {
  formats::EventScalars points = {
      {"validation/top1", m.top1}, {"validation/top5", m.top5}, {"validation/loss", m.loss}};
  if (m.top1_ema) points.emplace_back("validation/top1_ema", *m.top1_ema);
  if (m.loss_ema) points.emplace_back("validation/loss_ema", *m.loss_ema);
  return points;
}

History parse_history(std::string_view jsonl, int64_t last_step) {
  History history;
  while (!jsonl.empty()) {
    const size_t end = std::min(jsonl.find('\n'), jsonl.size());
    if (end > 0) parse_line(jsonl.substr(0, end), last_step, history);
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
  }
  return history;
}

std::string to_csv(const History& history) {
  std::string out = csv_header();
  in_order(history, [&](const auto& row) { out += csv_row(row); });
  return out;
}

std::string to_jsonl(const History& history) {
  std::string out;
  in_order(history, [&](const auto& row) { out += json_row(row); });
  return out;
}

}  // namespace tessera::monitor
