// SPDX-License-Identifier: Apache-2.0
// The program: argv to one library call. LibTorch is loaded only by commands that compute (engine.h).
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <new>

#include "tessera/base/error.h"
#include "tessera/base/one_line.h"
#include "tessera/base/version.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/read_on.h"
#include "tessera/cli/usage_error.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/surroundings.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter = R"(
Start here:
  tessera train recipes/quickstart.toml --procs 2     train a small ViT on 2 local processes
  tessera eval runs/quickstart                        evaluate its best checkpoint
  tessera predict runs/quickstart photo.png folder/   print the five most likely classes of each image
  tessera models --ranks 8                            print sizes, FLOPs and memory of the named models
  tessera options train                               print the recipe keys of [train] with their defaults
  tessera data inspect folder:/data/imagenet          print classes, sizes and broken images of a data set

A recipe is a TOML file; --set optimizer.lr=3e-4 sets any of its keys on the command line.
Under torchrun, srun or mpirun, use the same command without --procs.
Exit codes: 0 success, 1 layouts that compare --layouts found to differ, 2 wrong input or unsuitable machine, 3 failure of another rank or the network, 4 bug in Tessera,
5 some images of predict could not be read.)";

void print_version(bool verbose) {
  const BuildInfo& build = build_info();
  std::cout << "tessera " << build.version << " (" << build.commit << ")\n";
  if (!verbose) return;
  std::cout << "built with " << build.compiler << ", " << build.build_type << " (" << build.flags
            << (build.preset.empty() ? "" : "; preset ") << build.preset
            << (build.sanitizers.empty() ? "" : "; sanitizers ") << build.sanitizers << ")\n"
            << launch::machine_description() << "\n"
            << "cores " << launch::available_cores() << ", memory free "
            << launch::available_memory() / (1024 * 1024) << " MiB\n";
  const std::string torch =
      engine(Waiting::kSleep).torch_info();  // loaded first: loading may set ONEDNN_MAX_CPU_ISA
  for (const auto& [name, value] : launch::relevant_variables()) std::cout << name << '=' << value << "\n";
  std::cout << torch << std::endl;
}

/// CLI11 takes a vector from its end. `help WORDS` is `WORDS --help`. What follows "--" would go to no
/// subcommand: `launch` needs none.
std::vector<std::string> in_parsing_order(std::vector<std::string> words) {
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  if (!words.empty() && words.front() == "launch") {
    const auto separator = std::find(words.begin(), words.end(), "--");
    if (separator != words.end()) words.erase(separator);
  }
  std::reverse(words.begin(), words.end());
  return words;
}

/// What a command printed is its result; of a run, what it says on the way: nobody need read it (base/log.h).
void check_output() {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0 && std::cout) return;
  user_error({.where = "cli",
              .problem = concat("standard output did not take all that was printed",
                                flushed ? "" : concat(": ", std::strerror(reason)))});
}

int run(int argc, char** argv) {
  CLI::App app("Tessera trains Vision Transformers, sharded over processes, from one command.", "tessera");
  app.require_subcommand(0, 1);
  bool version = false, verbose = false;
  app.add_flag("--version", version, "Print the version");
  app.add_flag("--verbose", verbose, "With --version: print all details that a bug report needs");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  struct Command {
    const char* name;
    Action action;
  };
  const std::vector<Command> commands = {
      {"train", add_train(app, arguments)},
      {"eval", add_eval(app, arguments)},
      {"predict", add_predict(app, arguments)},
      {"models", add_models(app)},
      {"plan", add_plan(app)},
      {"checkpoint", add_checkpoint(app)},
      {"options", add_options(app)},
      {"launch", add_launch(app)},
      {"bench", add_bench(app, arguments)},
      {"data", add_data(app)},
      {"compare", add_compare(app)},
      {"doctor", add_doctor(app)},
      {"report", add_report(app)},
      {"trace", add_trace(app)},
  };
  add_pages(app);
  app.footer(kFooter);  // after the commands, which would inherit it
  try {
    app.parse(in_parsing_order(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help
      app.exit(error);
      check_output();
      return kExitDone;
    }
    throw UserError(usage_message(app, error));
  }
  if (const std::string empty = empty_path_message(app); !empty.empty()) throw UserError(empty);
  if (version) {
    print_version(verbose);
    check_output();
    return kExitDone;
  }
  for (const Command& command : commands) {
    if (!app.got_subcommand(command.name)) continue;
    const int code = command.action();
    if ((code == kExitDone || code == kExitPartial || code == train::kExitDifferent) &&
        std::string_view(command.name) != "train")
      check_output();
    return code;
  }
  std::cout << app.help();
  check_output();
  return kExitDone;
}

/// What the rest of the program takes for granted.
void prepare_process() {
  // A file opened later would get the number of a stream that is closed, and with it what is printed there.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) ::open("/dev/null", O_RDWR);  // gets the lowest number
  }
  ::signal(SIGXFSZ, SIG_IGN);  // a file above the limit is an error like a full disk
  std::error_code failed;
  static_cast<void>(std::filesystem::current_path(failed));
  if (failed == std::errc::no_such_file_or_directory) {
    user_error({.where = "cli", .problem = "the working directory was removed", .hint = "cd to another"});
  }
}

/// After a failure: no destructor of a half-dead process group may delay the end.
[[noreturn]] void fail(int exit_code, const std::string& message) {
  std::fprintf(stderr, "error: %s\n", one_line(message).c_str());
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  try {
    tessera::cli::prepare_process();
    return tessera::cli::run(argc, argv);
  } catch (const tessera::Error& error) {
    tessera::cli::fail(error.exit_code(), error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    tessera::cli::fail(tessera::kExitUser, tessera::concat("[file] ", error.what()));
  } catch (const std::bad_alloc&) {
    tessera::cli::fail(tessera::kExitUser,
                       "[memory] memory for the next piece of work: the system gives no more (end other "
                       "programs, raise the limit, or ask for less)");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    tessera::cli::fail(
        tessera::kExitInternal,
        tessera::concat("[internal] ", text.substr(0, text.find('\n')),
                        " (a fault of Tessera, please report it with `tessera --version --verbose`)"));
  }
}
