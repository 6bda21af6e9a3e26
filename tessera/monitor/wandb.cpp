// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/wandb.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/monitor/number.h"

namespace tessera::monitor {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

// Arguments: project, run folder, "resume" or "anew". The first line of the input is the recipe; then come
// rows, and at last an exit code. Input that ends without one is that of a run that broke off.
constexpr const char* kClient = R"python(
import json, os, socket, sys, uuid

sys.path = [place for place in sys.path if place]  # a folder "wandb" that happens to lie here is no package
channel = socket.socket(fileno=os.dup(0))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what wandb starts must not hold the channel
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # of its own faults, to its makers
lines = channel.makefile("r", encoding="utf-8")

def say(text):
    channel.sendall((" ".join(text.split()) + "\n").encode(errors="replace"))

def begin(project, folder, start):
    import tomllib
    import wandb
    folder = os.path.abspath(folder)
    id_path = os.path.join(folder, "wandb", "run_id.txt")
    run_id = uuid.uuid4().hex[:8]
    resume = start == "resume" and os.path.exists(id_path)
    if resume:
        with open(id_path) as file:
            run_id = file.read().strip()
    run = wandb.init(project=project, name=os.path.basename(folder), id=run_id, resume="allow" if resume else None,
                     dir=folder, config=tomllib.loads(json.loads(lines.readline())["recipe"]),
                     mode=os.environ.get("WANDB_MODE", "offline"))
    os.makedirs(os.path.dirname(id_path), exist_ok=True)
    with open(id_path, "w") as file:
        file.write(run_id + "\n")
    return run

try:
    run = begin(*sys.argv[1:])
except Exception as error:
    text = str(error) or type(error).__name__
    say(text if isinstance(error, ImportError) else "init: " + text)
    raise
say("ready")
exit_code = 1
try:
    for line in lines:
        if not line.endswith("\n"):
            break  # cut off
        row = json.loads(line)
        if "values" in row:
            run.log({name: float(value) for name, value in row["values"].items()}, step=row["step"])
        else:
            exit_code = row["exit_code"]
finally:
    run.finish(exit_code=exit_code)
)python";

constexpr std::string_view kInit = "init: ";  // what wandb.init says against it begins so

std::string python() {
  const char* chosen = std::getenv("TESSERA_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : "python3";
}

[[noreturn]] void cannot_begin(const std::string& found) {
  user_error(
      {.where = "monitor.wandb",
       .problem = concat("run.wandb is set, but wandb cannot be used: ", found),
       .expected = "the wandb package for Python",
       .hint = "pip install wandb, let TESSERA_PYTHON name a Python that has it, or set run.wandb = \"\""});
}

fs::path open_output(const fs::path& run_dir) {
  fs::path path = run_dir / "logs" / "wandb.log";
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  if (!std::ofstream(path, std::ios::app)) {
    user_error({.where = "monitor.wandb",
                .problem = concat("cannot open ", path.string(), ": ", std::strerror(errno)),
                .hint = "choose another run folder"});
  }
  return path;
}

SideProcess start(const WandbOptions& options, const std::string& program, const fs::path& output) {
  try {
    return SideProcess({program, "-c", kClient, options.project, fs::absolute(options.run_dir).string(),
                        options.resume ? "resume" : "anew"},
                       output);
  } catch (const std::system_error& error) {
    cannot_begin(concat("cannot start ", one_line(program), ": ", error.code().message()));
  }
}

/// What was written last into the file behind `from`; empty: nothing.
std::string last_line(const fs::path& path, size_t from) {
  const std::string all = read_file(path);
  const std::string_view text = trimmed(std::string_view(all).substr(std::min(from, all.size())));
  const size_t end = text.rfind('\n');
  return std::string(text.substr(end == std::string_view::npos ? 0 : end + 1));
}

}  // namespace

Wandb::Wandb(WandbOptions options, Log& log)
    : options_(std::move(options)),
      log_(log),
      python_(python()),
      output_(open_output(options_.run_dir)),
      said_before_(fs::file_size(output_)),
      process_(start(options_, python_, output_)) {
  process_.send(json_text(Json{{"recipe", options_.recipe_toml}}) + "\n");
  std::optional<std::string> answer = process_.answer(options_.start_seconds);
  if (answer == "ready") return;
  process_.finish(answer ? 5 : 0);
  const std::string name = one_line(python_);
  if (!answer) cannot_begin(concat(name, " has not begun after ", options_.start_seconds, " s"));
  if (answer->empty()) answer = last_line(output_, said_before_);
  if (answer->empty()) cannot_begin(concat(name, " ended without a word"));
  if (answer->starts_with(kInit)) {
    user_error({.where = "monitor.wandb",
                .problem = concat("run.wandb is set, but wandb.init failed: ", name,
                                  " says: ", one_line(answer->substr(kInit.size()))),
                .hint = concat("see ", output_.string(),
                               "; WANDB_MODE=offline needs no account, run.wandb = \"\" turns wandb off")});
  }
  cannot_begin(concat(name, " says: ", one_line(*answer)));
}

void Wandb::send(int64_t step, const formats::EventScalars& points) {
  Json row = {{"step", step}};
  // JSON has no nan; Python's float() reads "nan" and "inf".
  for (const auto& [name, value] : points) {
    row["values"][name] = std::isfinite(value) ? Json(value) : Json(shortest(value));
  }
  process_.send(json_text(row) + "\n");
  warn_of_lost_rows();
}

void Wandb::warn_of_lost_rows() {
  if (process_.dropped() == 0) return;
  warn_once(
      process_.open()
          ? concat("to take rows as they come: ", human_bytes(SideProcess::kMostWaiting),
                   " of them wait, and the oldest are dropped (training goes on; metrics.csv has all; see ",
                   output_.string(), ")")
          : concat("to take rows until the run ends: it has ended (training goes on, without W&B; see ",
                   output_.string(), ")"));
}

void Wandb::finish() {
  if (finished_) return;
  finished_ = true;
  process_.send(json_text(Json{{"exit_code", 0}}) + "\n");
  warn_of_lost_rows();
  switch (process_.finish(options_.end_seconds)) {
    case SideProcess::End::kDone:
      break;
    case SideProcess::End::kFailed:
      warn_once(concat("to end well: it failed (see ", output_.string(), ")"));
      break;
    case SideProcess::End::kKilled:
      warn_once(concat("to end within ", human_seconds(options_.end_seconds),
                       " of the run: it did not, and was killed (metrics.csv has all rows; see ",
                       output_.string(), ")"));
      break;
  }
}

void Wandb::warn_once(const std::string& text) {
  if (warned_) return;
  warned_ = true;
  log_.warn(concat("[monitor.wandb] ", one_line(python_), " is ", text));
}

}  // namespace tessera::monitor
