#include "tessera/cli/data_bench.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/measure.h"

namespace tessera::cli {
namespace {

struct Options {
  std::string source, split = "train";
  int64_t imagenet_like = 0;
  data::MeasureOptions measure;
  bool json = false;
};

constexpr const char* kFooter = R"(
Images are taken from all over the source. Stages are CPU time of one thread with the encoded bytes in memory (`read`,
which fetches them, is wall time); the pipeline is the training loader: random-resized-crop, flip, normalise, batches of --batch.
`read` and the first pipeline come from the disk, or from the page cache when the files were read shortly before.

  tessera data bench folder:/data/imagenet
  tessera data bench --imagenet-like 500 --threads 1,2,4)";

double scaling(const data::Measurement& m, const data::Pipeline& pipeline) {
  const data::Pipeline& first = m.pipelines.front();
  const double times = static_cast<double>(std::max<int64_t>(1, pipeline.threads)) /
                       static_cast<double>(std::max<int64_t>(1, first.threads));
  return pipeline.images_per_second / first.images_per_second / times;
}

void print_text(const data::Measurement& m) {
  std::printf("%s images, mean %s, %.0f x %.0f\n\n", human_count(m.images).c_str(),
              human_bytes(m.mean_bytes).c_str(), m.mean_width, m.mean_height);
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
  std::printf("\npeak memory %s\n", human_bytes(static_cast<double>(m.peak_rss_bytes)).c_str());
}

void print_json(const data::Measurement& m) {
  nlohmann::ordered_json stages, pipelines = nlohmann::ordered_json::array();
  for (const data::Stage& stage : m.stages) stages[stage.name] = stage.seconds;
  for (const data::Pipeline& pipeline : m.pipelines) {
    pipelines.push_back({{"threads", pipeline.threads},
                         {"images_per_second", pipeline.images_per_second},
                         {"cpu_seconds_per_image", pipeline.cpu_seconds},
                         {"scaling", scaling(m, pipeline)}});
  }
  const nlohmann::ordered_json all = {{"images", m.images},
                                      {"mean_bytes", m.mean_bytes},
                                      {"mean_width", m.mean_width},
                                      {"mean_height", m.mean_height},
                                      {"stage_seconds", stages},
                                      {"pipelines", pipelines},
                                      {"peak_rss_bytes", m.peak_rss_bytes}};
  std::cout << all.dump(2) << '\n';
}

int run(const Options& options) {
  if (options.source.empty() == (options.imagenet_like == 0)) {
    user_error("cli.data_bench", "either SOURCE or --imagenet-like N: found ",
               options.source.empty() ? "neither" : "both");
  }
  const auto source = options.imagenet_like > 0 ? data::open_imagenet_like(options.imagenet_like)
                                                : data::open_source(options.source, options.split, {});
  const data::Measurement measurement = data::measure(*source, options.measure);
  options.json ? print_json(measurement) : print_text(measurement);
  return kExitDone;
}

}  // namespace

Action add_data_bench(CLI::App& data) {
  auto options = std::make_shared<Options>();
  data::MeasureOptions& measure = options->measure;
  CLI::App* command = data.add_subcommand("bench", "How fast this machine makes batches of a source");
  command->add_option("SOURCE", options->source, "What data.source is in a recipe, such as folder:DIR");
  command
      ->add_option("--imagenet-like", options->imagenet_like,
                   "Instead of SOURCE: N pictures made in memory, of ImageNet's size and weight")
      ->check(CLI::PositiveNumber);
  command->add_option("--split", options->split, "Split of SOURCE")->capture_default_str();
  command->add_option("--images", measure.images, "Images of each measurement")->capture_default_str();
  command->add_option("--rounds", measure.rounds, "Measurements of each kind; the median is shown")
      ->capture_default_str();
  command
      ->add_option("--threads", measure.threads,
                   "Decoding threads of the pipeline, such as 1,2; 0: the caller's")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--batch", measure.batch, "Images of a batch")->capture_default_str();
  command->add_option("--size", measure.transform.image_size, "Edge of the crop the network sees")
      ->capture_default_str();
  command->add_flag("!--no-dct-scaling", measure.transform.dct_scaling,
                    "Decode large crops at full size (data.dct_scaling = false)");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(kFooter);
  return [options] { return run(*options); };
}

}  // namespace tessera::cli
