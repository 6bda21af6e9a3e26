// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/formats/event_file.h"
#include "tessera/monitor/append_file.h"
#include "tessera/monitor/bar.h"
#include "tessera/monitor/metrics_row.h"
#include "tessera/monitor/wandb.h"

namespace tessera::monitor {
namespace fs = std::filesystem;
namespace {

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::unique_ptr<Wandb> start_wandb(const MonitorOptions& options, Log& log) {
  if (options.wandb.empty()) return nullptr;
  WandbOptions wandb{options.wandb, options.run_dir, options.recipe_toml, options.resume};
  wandb.start_seconds = std::min(wandb.start_seconds, options.wandb_seconds);
  return std::make_unique<Wandb>(std::move(wandb), log);
}

// Writing to a terminal or pipe whose reader left must fail with an error, not end the program.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

fs::path make_folders(const fs::path& run_dir) {
  std::error_code error;
  fs::create_directories(run_dir / "tensorboard", error);
  if (error) {
    user_error({.where = "monitor.open",
                .problem = concat("cannot create folder ", (run_dir / "tensorboard").string(), ": ",
                                  error.message()),
                .hint = "choose another run folder"});
  }
  return run_dir;
}

}  // namespace

struct Monitor::State {
  State(MonitorOptions given, Log& given_log)
      : options(std::move(given)),
        log(given_log),
        wandb(start_wandb(options, log)),
        folder(make_folders(options.run_dir)),
        start(options.resume ? AppendFile::Start::kKeep : AppendFile::Start::kEmpty),
        csv(folder / "metrics.csv", start),
        jsonl(folder / "metrics.jsonl", start),
        tensors(folder / "statistics.jsonl", start),
        events(formats::new_event_file_path(folder / "tensorboard", wall_time()), AppendFile::Start::kEmpty) {
  }

  void open_files();
  void restore();
  void write(AppendFile& file, std::string_view bytes);
  bool is_row(int64_t step) const;
  void update(StepMetrics& metrics);
  void write_row(const StepMetrics& metrics);
  void plot(int64_t step, const formats::EventScalars& points);

  MonitorOptions options;
  Log& log;
  std::unique_ptr<Wandb> wandb;  // or null. First: where it cannot begin, nothing else is in the folder yet
  fs::path folder;
  AppendFile::Start start;
  AppendFile csv, jsonl, tensors, events;
  History history;
  Progress progress;
  Pace pace;
  std::shared_ptr<Bar> bar;  // null: plain lines. Shared with the log, which clears it before each line.
  bool warned = false;
};

void Monitor::State::open_files() {
  if (options.resume) {
    restore();
  } else {
    write(csv, csv_header());
    write(jsonl, "");
  }
  write(events, formats::event_file_header(wall_time()) +
                    formats::event_session_start(wall_time(), options.resume ? options.resume_step + 1 : 0));
}

void Monitor::State::restore() {
  std::error_code ignored;
  if (fs::exists(jsonl.path(), ignored))
    history = parse_history(read_file(jsonl.path()), options.resume_step);
  if (history.damaged > 0) {
    log.warn(concat("[monitor.resume] ", history.damaged, " damaged line(s) in ", jsonl.path().string(),
                    " were left out"));
  }
  try {
    write_file_atomic(jsonl.path(), to_jsonl(history));
    write_file_atomic(csv.path(), to_csv(history));
    if (fs::exists(tensors.path(), ignored)) {
      write_file_atomic(tensors.path(), rows_until(read_file(tensors.path()), options.resume_step));
    }
  } catch (const UserError& error) {
    // Rows of the abandoned steps stay; whoever reads the file takes the later of two rows of a step.
    log.warn(concat(error.what(), "; training goes on"));
    warned = true;
  }
  if (!history.evals.empty()) progress.top1 = history.evals.back().top1;
}

void Monitor::State::write(AppendFile& file, std::string_view bytes) {
  if (file.append(bytes) || warned) return;
  warned = true;
  log.warn(concat("[monitor.write] cannot write ", file.path().string(), ": ", file.error(),
                  " (training goes on; rows are kept in memory and written when there is room)"));
}

bool Monitor::State::is_row(int64_t step) const {
  return step <= 1 || step >= options.total_steps || step % std::max<int64_t>(options.log_every, 1) == 0;
}

// The line of progress, and of the row what follows from the run so far.
void Monitor::State::update(StepMetrics& m) {
  pace.add(m.step, m.seconds);
  if (options.peak_tflops > 0) m.peak_share = m.tflops / options.peak_tflops;
  const double left = pace.seconds_per_step() * static_cast<double>(options.total_steps - m.step);
  m.seconds_left = std::round(10 * left) / 10;  // more digits would promise too much
  progress.status.clear();
  progress.step = m.step;
  progress.total_steps = options.total_steps;
  progress.epoch = m.epoch;
  progress.loss = m.loss;
  progress.learning_rate = m.learning_rate;
  progress.images_per_second = m.images_per_second;
  progress.tflops = m.tflops;
  progress.peak_share = m.peak_share;
  progress.data_wait = m.data_wait;
  progress.comm_wait = m.comm_wait;
  progress.memory_bytes = m.memory_bytes;
  progress.seconds_left = m.seconds_left;
  progress.device_bytes = m.device_bytes;
  progress.device_peak_bytes = m.device_peak_bytes;
  progress.bubble = m.bubble;
}

void Monitor::State::write_row(const StepMetrics& m) {
  history.steps.push_back(m);
  write(csv, csv_row(m));
  write(jsonl, json_row(m));
  plot(m.step, scalars(m));
}

void Monitor::State::plot(int64_t step, const formats::EventScalars& points) {
  write(events, formats::event_scalars(wall_time(), step, points));
  if (wandb) wandb->send(step, points);
}

Monitor::Monitor(MonitorOptions options, Log& log)
    : state_(std::make_unique<State>(std::move(options), log)) {
  ignore_broken_pipes();
  if (log.console() && can_draw(STDOUT_FILENO)) {
    state_->bar = std::make_shared<Bar>(STDOUT_FILENO);
    log.set_before_line([bar = state_->bar] { bar->clear(); });
  }
  state_->progress.step = state_->options.resume ? state_->options.resume_step : 0;
  state_->progress.total_steps = state_->options.total_steps;
  state_->open_files();
}

Monitor::~Monitor() {
  if (state_->bar) state_->bar->clear();
}

void Monitor::step(StepMetrics metrics) {
  state_->update(metrics);
  const bool row = state_->is_row(metrics.step);
  if (row) state_->write_row(metrics);
  if (state_->bar) {
    state_->bar->draw(state_->progress, false);
    if (row) state_->log.record(plain_line(state_->progress));
  } else if (row) {
    state_->log.info(plain_line(state_->progress));
  }
}

void Monitor::eval(const EvalMetrics& metrics) {
  auto& evals = state_->history.evals;
  // A finished run that is resumed evaluates once more.
  if (!evals.empty() && evals.back().step == metrics.step) evals.pop_back();
  evals.push_back(metrics);
  state_->progress.status.clear();
  state_->progress.top1 = metrics.top1;
  state_->write(state_->csv, csv_row(metrics));
  state_->write(state_->jsonl, json_row(metrics));
  state_->plot(metrics.step, scalars(metrics));
  state_->log.info(evaluation_line(metrics));
}

void Monitor::statistics(int64_t step, const std::vector<TensorStatistics>& statistics) {
  state_->write(state_->tensors, json_row(step, statistics));
  state_->plot(step, scalars(statistics));
}

void Monitor::status(const std::string& text) {
  const auto first_word = [](const std::string& words) { return words.substr(0, words.find(' ')); };
  // Another kind of work shows at once; the counts within it are many.
  const bool changed = first_word(text) != first_word(state_->progress.status);
  state_->progress.status = text;
  if (state_->bar) state_->bar->draw(state_->progress, changed);
}

void Monitor::finish() {
  if (state_->bar) state_->bar->clear();
  if (state_->wandb) state_->wandb->finish();
}

const std::vector<StepMetrics>& Monitor::steps() const { return state_->history.steps; }
const std::vector<EvalMetrics>& Monitor::evals() const { return state_->history.evals; }

}  // namespace tessera::monitor
