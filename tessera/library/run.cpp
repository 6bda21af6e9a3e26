// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/version.h"
#include "tessera/device/in_use.h"
#include "tessera/eager/device.h"
#include "tessera/eager/session.h"
#include "tessera/library/pipeline.h"
#include "tessera/mesh/launched.h"
#include "tessera/plan/spans.h"

namespace tessera::library {
namespace {

/// The axes with the open one filled in.
std::vector<mesh::Axis> fit(std::vector<mesh::Axis> axes, int64_t world) {
  int64_t given = 1, open = 0;
  std::string text;
  for (const mesh::Axis& axis : axes) {
    (axis.size == 0 ? open : given) *= axis.size == 0 ? 0 : axis.size;
    open += axis.size == 0 ? 1 : 0;
    text += concat(text.empty() ? "" : " x ", axis.name, " ", axis.size);
  }
  const bool fits = given > 0 && open <= 1 && (open == 1 ? world % given == 0 : world == given);
  if (!fits) {
    user_error(
        {.where = "library.connect",
         .problem = concat("the axes ", text, " do not make up ", world, world == 1 ? " rank" : " ranks"),
         .expected =
             "sizes whose product is the number of ranks; one size may be 0, which stands for the rest"});
  }
  for (mesh::Axis& axis : axes) {
    if (axis.size == 0) axis.size = world / given;
  }
  return axes;
}

[[noreturn]] void end(int exit_code, const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

/// Chooses the device, before groups connect. Where that fails the other ranks are told.
void choose(const ConnectOptions& options, const launch::Ranks& ranks) {
  const eager::DeviceRequest request{.kind = options.device,
                                     .share_gpu = options.share_gpu,
                                     .settings = {.where = "library.connect",
                                                  .cuda = "ConnectOptions::device = kCuda",
                                                  .cpu = "ConnectOptions::device = kCpu",
                                                  .share = "ConnectOptions::share_gpu = true"}};
  eager::before_meeting(options.timeout, ranks, [&] {
    if (eager::choose_device(request, ranks).is_cpu()) device::use_cuda({});
  });
}

std::string device_fact(const ConnectOptions& options) {
  if (device().is_cpu()) return "CPU";
  return options.share_gpu ? "GPU (shared)" : "GPU";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::unique_ptr<mesh::Mesh> connect(const ConnectOptions& options) {
  const launch::Ranks ranks = launch::ranks_from_environment();
  at::set_num_threads(static_cast<int>(launch::threads_per_rank(options.threads, ranks)));
  choose(options, ranks);
  mesh::Rendezvous where = mesh::rendezvous(ranks, options.timeout);
  where.shared_memory = options.shared_memory;
  const PipelineOptions& stages = options.pipeline;
  const plan::Plan plan = pipeline_plan(stages, ranks.world);
  return std::make_unique<mesh::Mesh>(where, fit(options.axes, ranks.world),
                                      mesh::Facts{mesh::program_fact(),
                                                  {"the program's fingerprint", options.fingerprint, ""},
                                                  {"the pipeline",
                                                   concat("stages ", stages.stages, ", parts ", stages.parts,
                                                          ", schedule ", plan::to_string(stages.schedule)),
                                                   ""},
                                                  {"the kind of device", device_fact(options),
                                                   "set ConnectOptions::device and share_gpu alike on every "
                                                   "rank"}},
                                      plan::spans_of(plan), plan::links_of(plan));
}

at::Device device() { return device::device_in_use(); }

int run(const std::function<int(mesh::Mesh&)>& body, const ConnectOptions& options) {
  std::unique_ptr<mesh::Mesh> mesh;
  try {
    mesh = connect(options);
    const int exit_code = body(*mesh);
    mesh->world().barrier("the end");
    return exit_code;
  } catch (const CommError& error) {
    // A sharded module has asked who is silent already.
    if (!mesh || mesh->has_explained()) end(kExitCommunication, error.what());
    const std::string silent = mesh->name_silent_ranks();
    end(kExitCommunication,
        concat(error.what(), " (", mesh->describe(), ")", silent.empty() ? "" : "; ", silent));
  } catch (const Error& error) {
    end(error.exit_code(), error.what());
  } catch (const std::exception& error) {
    end(kExitInternal, first_line(error.what()));
  }
}

}  // namespace tessera::library
