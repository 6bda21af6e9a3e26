// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/data_bench.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/cli/data_command.h"
#include "tessera/cli/number_checks.h"
#include "tessera/data/measure.h"

namespace tessera::cli {
namespace {

struct DataBenchOptions {
  std::vector<std::string> sources;
  std::string split = "train";
  data::SourceOptions reading;
  int64_t imagenet_like = 0;
  data::MeasureOptions measure;
  bool json = false;
};

constexpr const char* kDataBenchFooter = R"(
Give either SOURCE or --imagenet-like. Images are spread evenly over a source. Several sources are measured by turns
in every round, and the last table compares them with the first source. The table of stages has the CPU time of one
thread with the encoded bytes in memory, except for `read`, which is wall time. The pipeline is the training loader:
random resized crop, flip, normalisation and batches of --batch images. `read` and the first pipeline read from disk, or
from the page cache if the files were read shortly before.

Examples:
  tessera data bench folder:/data/imagenet
  tessera data bench folder:/data/imagenet zip:/data/imagenet-zip wds:/data/imagenet-wds --rounds 5
  tessera data bench --imagenet-like 500 --threads 1,2,4)";

double scaling(const data::Measurement& m, const data::Pipeline& pipeline) {
  const data::Pipeline& first = m.pipelines.front();
  const double times = static_cast<double>(std::max<int64_t>(1, pipeline.threads)) /
                       static_cast<double>(std::max<int64_t>(1, first.threads));
  return pipeline.images_per_second / first.images_per_second / times;
}

void print_text(const data::Measurement& m) {
  std::printf("%s images, mean %s, %.0f x %.0f%s\n\n", human_count(m.images).c_str(),
              human_bytes(m.mean_bytes).c_str(), m.mean_width, m.mean_height,
              m.broken == 0 ? "" : concat("; ", human_count(m.broken), " broken left out").c_str());
  std::printf("%-18s %10s %12s %10s\n", "stage, 1 thread", "us/image", "images/s", "MB/s");
  for (const data::Stage& stage : m.stages) {
    const double rate = stage.seconds > 0 ? 1 / stage.seconds : 0;
    std::printf("%-18s %10.1f %12.0f %10.1f\n", stage.name.c_str(), stage.seconds * 1e6, rate,
                rate * m.mean_bytes / 1e6);
  }
  std::printf("\n%-18s %10s %12s %10s %14s\n", "pipeline, threads", "scaling", "images/s", "MB/s",
              "CPU us/image");
  for (const data::Pipeline& pipeline : m.pipelines) {
    std::printf("%-18ld %8.1f %% %12.0f %10.1f %14.1f\n", static_cast<long>(pipeline.threads),
                100 * scaling(m, pipeline), pipeline.images_per_second,
                pipeline.images_per_second * m.mean_bytes / 1e6, pipeline.cpu_seconds * 1e6);
  }
}

/// Beside the first source: more images a second, or less CPU time for one, is better.
void print_comparison(const std::vector<std::string>& sources, const std::vector<data::Measurement>& all) {
  std::printf("%-8s %10s %12s %14s %12s  %s\n", "threads", "speed", "images/s", "CPU us/image", "CPU",
              "source");
  for (size_t i = 0; i < all.front().pipelines.size(); ++i) {
    for (size_t source = 0; source < all.size(); ++source) {
      const data::Pipeline& pipeline = all[source].pipelines[i];
      std::printf("%-8ld %8.1f %% %12.0f %14.1f %10.1f %%  %s\n", static_cast<long>(pipeline.threads),
                  100 * pipeline.speed_ratio, pipeline.images_per_second, pipeline.cpu_seconds * 1e6,
                  100 * pipeline.cpu_ratio, sources[source].c_str());
    }
  }
}

void print_all(const std::vector<std::string>& sources, const std::vector<data::Measurement>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all.size() > 1) std::printf("%s%s\n", i > 0 ? "\n" : "", sources[i].c_str());
    print_text(all[i]);
  }
  if (all.size() > 1) {
    std::printf("\n");
    print_comparison(sources, all);
  }
  std::printf("\npeak memory %s\n", human_bytes(static_cast<double>(all.back().peak_rss_bytes)).c_str());
}

nlohmann::ordered_json as_json(const std::string& source, const data::Measurement& m) {
  nlohmann::ordered_json stages, pipelines = nlohmann::ordered_json::array();
  for (const data::Stage& stage : m.stages) stages[stage.name] = stage.seconds;
  for (const data::Pipeline& pipeline : m.pipelines) {
    pipelines.push_back({{"threads", pipeline.threads},
                         {"images_per_second", pipeline.images_per_second},
                         {"cpu_seconds_per_image", pipeline.cpu_seconds},
                         {"scaling", scaling(m, pipeline)},
                         {"speed_ratio", pipeline.speed_ratio},
                         {"cpu_ratio", pipeline.cpu_ratio}});
  }
  return {{"source", source},           {"images", m.images},         {"broken", m.broken},
          {"mean_bytes", m.mean_bytes}, {"mean_width", m.mean_width}, {"mean_height", m.mean_height},
          {"stage_seconds", stages},    {"pipelines", pipelines},     {"peak_rss_bytes", m.peak_rss_bytes}};
}

/// An object; of several sources a list of them.
void print_json(const std::vector<std::string>& sources, const std::vector<data::Measurement>& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < all.size(); ++i) list.push_back(as_json(sources[i], all[i]));
  std::cout << json_text(list.size() == 1 ? list[0] : list, 2) << '\n';
}

int run(const DataBenchOptions& options) {
  if (options.sources.empty() == (options.imagenet_like == 0)) {
    user_error({.where = "cli.data_bench",
                .problem = options.sources.empty() ? "neither SOURCE nor --imagenet-like is given"
                                                   : "both SOURCE and --imagenet-like are given",
                .expected = "either SOURCE or --imagenet-like N"});
  }
  std::vector<std::string> names = options.sources;
  std::vector<std::unique_ptr<data::Source>> opened;
  if (options.imagenet_like > 0) {
    names = {"imagenet-like"};
    opened.push_back(data::open_imagenet_like(options.imagenet_like));
  }
  for (const auto& source : options.sources) {
    opened.push_back(data::open_source(source, options.split, options.reading));
  }
  std::vector<const data::Source*> sources;
  for (const auto& source : opened) sources.push_back(source.get());
  data::MeasureOptions measure = options.measure;
  measure.warn = options.reading.warn;
  const auto all = data::measure(sources, measure);
  options.json ? print_json(names, all) : print_all(names, all);
  return kExitDone;
}

}  // namespace

Action add_data_bench(CLI::App& data) {
  auto options = std::make_shared<DataBenchOptions>();
  data::MeasureOptions& measure = options->measure;
  CLI::App* command =
      data.add_subcommand("bench", "Measure how fast this machine reads, decodes and batches a data set");
  command->add_option("SOURCE", options->sources,
                      "Data sets to measure and compare, each written as data.source in a recipe");
  command
      ->add_option("--imagenet-like", options->imagenet_like,
                   "Measure N images generated in memory, of ImageNet's typical size, instead of SOURCE")
      ->check(at_least(1));
  command->add_option("--split", options->split, "Split of SOURCE to read")->capture_default_str();
  add_source_options(command, &options->reading);
  command->add_option("--images", measure.images, "Number of images in each measurement")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--rounds", measure.rounds, "Number of measurements; their median is printed")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option("--threads", measure.threads,
                   "Numbers of decoding threads to measure, such as 1,2,4; 0 = decode in the calling thread")
      ->delimiter(',')
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--batch", measure.batch, "Images per batch")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option("--size", measure.transform.image_size, "Height and width of the training crop, in pixels")
      ->capture_default_str();
  command->add_flag("!--no-dct-scaling", measure.transform.dct_scaling,
                    "Decode JPEGs at full size even if the crop is large (data.dct_scaling = false)");
  command->add_flag("--json", options->json, "Print the results as JSON");
  command->footer(kDataBenchFooter);
  return [options] { return run(*options); };
}

}  // namespace tessera::cli
