// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/telemetry.h"

#include <algorithm>
#include <utility>

#include "tessera/arch/model.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/monitor/bar.h"
#include "tessera/monitor/number.h"

namespace tessera::loop {

Telemetry::Telemetry(const RunState& state, const Backend& backend, const recipe::StepCounts& counts,
                     monitor::Monitor* monitor, Log& log)
    : state_(state),
      backend_(backend),
      counts_(counts),
      monitor_(monitor),
      log_(log),
      image_flops_(arch::training_flops(state.recipe.model)) {}

bool Telemetry::is_line(int64_t step) const {
  return step % state_.recipe.train.log_every == 0 || step == counts_.total;
}

double Telemetry::epoch() const {
  return static_cast<double>(state_.step - counts_.begin) / counts_.steps_per_epoch;
}

std::optional<double> Telemetry::images_per_second() const {
  if (own_seconds_ <= 0) return std::nullopt;
  return static_cast<double>(own_images_) / own_seconds_;
}

void Telemetry::step(const StepResult& step, double lr, const StepTimes& times) {
  own_seconds_ += times.seconds;
  own_images_ += step.samples;
  // Waits come in bursts: a line tells the mean since the line before.
  if (is_line(state_.step - 1)) since_line_ = {};
  since_line_.seconds += times.seconds;
  since_line_.data_wait += times.data_wait;
  since_line_.comm_wait += times.comm_wait;
  if (times.bubble) since_line_.bubble = since_line_.bubble.value_or(0) + *times.bubble;
  if (monitor_ == nullptr) {
    record(step, times.seconds);
    return;
  }
  monitor::StepMetrics metrics;
  metrics.step = state_.step;
  metrics.epoch = epoch();
  metrics.loss = step.loss;
  metrics.learning_rate = lr;
  metrics.gradient_norm = step.gradient_norm;
  metrics.images_per_second = static_cast<double>(step.samples) / times.seconds;
  metrics.tflops = image_flops_ * metrics.images_per_second / 1e12;
  metrics.data_wait = since_line_.data_wait / since_line_.seconds;
  metrics.comm_wait = since_line_.comm_wait / since_line_.seconds;
  if (since_line_.bubble) metrics.bubble = *since_line_.bubble / since_line_.seconds;
  metrics.memory_bytes = static_cast<double>(resident_bytes());
  metrics.seconds = state_.seconds;
  if (const auto there = backend_.device_memory()) {
    metrics.device_bytes = static_cast<double>(there->bytes);
    metrics.device_peak_bytes = static_cast<double>(there->peak_bytes);
  }
  monitor_->step(metrics);
  if (!step.statistics.empty()) monitor_->statistics(state_.step, step.statistics);
}

/// What a rank without a monitor leaves in its log: how far it came, and what it waited for.
void Telemetry::record(const StepResult& step, double seconds) {
  if (!is_line(state_.step)) return;
  const auto percent = [&](double waited) { return 100 * waited / since_line_.seconds; };
  std::string line =
      monitor::print("step %ld/%ld  loss %.4f  %.3f s  data %.0f %%  comm %.0f %%",
                     static_cast<long>(state_.step), static_cast<long>(counts_.total), step.loss, seconds,
                     percent(since_line_.data_wait), percent(since_line_.comm_wait));
  if (since_line_.bubble) line += monitor::print("  bubble %.0f %%", percent(*since_line_.bubble));
  const auto there = backend_.device_memory();
  log_.record(there ? concat(line, "  ",
                             monitor::device_memory_text(static_cast<double>(there->bytes),
                                                         static_cast<double>(there->peak_bytes)))
                    : line);
}

// (More than 5 parameters: references that the trace holds.)
StepTrace::StepTrace(const RunState& state, int64_t last_step, World& world, std::filesystem::path file,
                     FolderFault fault, Log& log)
    : state_(state),
      last_step_(last_step),
      world_(world),
      file_(std::move(file)),
      fault_(std::move(fault)),
      log_(log),
      traced_(parse_step_range(state.recipe.run.trace)),
      trace_(world.rank()) {}

StepResult StepTrace::run(const std::function<StepResult()>& step) {
  const int64_t number = state_.step + 1;  // as the lines count
  const TraceScope scope(traced_ && traced_->contains(number) ? &trace_ : nullptr);
  const std::string name = scope.on() ? concat("step ", number) : "";
  const TraceSpan span("step", name);
  trace_resident_memory();
  return step();
}

void StepTrace::write_when_done(bool stop) {
  if (!traced_ || state_.step < traced_->first) return;
  if (state_.step < std::min(traced_->last, last_step_) && !stop) return;
  traced_.reset();
  const std::string mine = trace_.events();
  auto events = world_.gather(mine, "trace");
  if (file_.empty() || (fault_ && !fault_().empty())) return;
  // Ranks that are pretended answer with this one's.
  if (std::ranges::all_of(events, [&](const std::string& each) { return each == mine; })) events = {mine};
  try {
    write_file_atomic(file_, trace_document(events));
    log_.info(concat("trace in ", file_.string(), " (open it in ui.perfetto.dev)"));
  } catch (const UserError& error) {
    log_.warn(concat(error.what(), "; training goes on"));
  }
}

}  // namespace tessera::loop
