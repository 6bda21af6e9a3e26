// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/checkpoint_convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"
#include "tessera/base/warn.h"
#include "tessera/base/words.h"
#include "tessera/checkpoint/model_json.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"
#include "tessera/cli/engine.h"
#include "tessera/recipe/evaluation_recipe.h"
#include "tessera/recipe/recipe.h"
#include "tessera/weights/channels.h"
#include "tessera/weights/export.h"
#include "tessera/weights/finetune.h"
#include "tessera/weights/trained.h"
#include "tessera/weights/weights.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConvertFooter = R"(
IN is a Tessera run or checkpoint, or weights of timm, DeiT, MAE, DINO, DINOv2 (.safetensors, .pth), torchvision (.pth),
Hugging Face (model.safetensors or its index, with config.json) or Google (.npz, original and big_vision). The format is
detected from the content. Python code in a .pth file is never run. OUT is a folder of checkpoints (--to tessera), a
folder (--to hf) or a file. At most one whole tensor is in memory at a time.

Examples:
  tessera checkpoint convert vit.safetensors runs/vit/checkpoints
  tessera checkpoint convert B_16.npz runs/b16/checkpoints --to-finetune --image-size 384 --classes 10
  tessera checkpoint convert runs/quickstart hub/quickstart --to hf

After writing, all tensors are read back and compared, and so are the logits of two generated images, or their features
where there is no head or it is all zeros. --no-check skips both checks, of which the second needs the memory of the
whole model.)";

constexpr double kTolerance = 1e-4;  // of logits and features, where numbers are not rounded

struct ConvertOptions {
  std::string input, output, from, to = "tessera", dtype = "F32", positions = "bicubic", head = "auto", pool,
                                   max_shard_size;
  bool finetune = false, no_ema = false, no_check = false;
  int64_t heads = 0, image_size = 0, patch_size = 0, channels = 0, classes = 0, ranks = 1;
  double head_bias = 0;
};

/// The model, with all that a recipe beside it says.
weights::Model open(const ConvertOptions& options) {
  const weights::Opened opened = weights::open_file(options.input, !options.no_ema);
  if (!opened.passed_over.empty()) std::cerr << "warning: " << one_line(opened.passed_over) << "\n";
  weights::OpenOptions how;
  if (!options.from.empty()) how.from = weights::family_of(options.from);
  how.heads = options.heads;
  if (opened.recipe_toml.empty()) return weights::open_model(opened, how);
  const recipe::Recipe saved = recipe::parse_recipe(opened.recipe_toml, opened.file.string(), ".", {});
  if (saved.model.family() != arch::VitConfig::kFamily) {
    user_error({.where = "checkpoint.convert",
                .problem = concat(options.input, " holds a ", saved.model.family()),
                .expected = "a ViT",
                .hint = "tessera checkpoint export writes its weights without conversion"});
  }
  const auto& vit = saved.model.as<arch::VitConfig>();
  how.heads = vit.heads;
  weights::Model model = weights::open_model(opened, how);
  model.description.config = vit;
  model.description.pixels = saved.data.transform;
  model.description.notes.clear();  // guesses that the recipe makes needless
  auto classes = weights::saved_classes(opened);
  if (!classes.empty()) model.description.classes = std::move(classes);
  return model;
}

/// The model that is wanted: the one there is, or the beginning of a fine-tuning.
arch::VitConfig wanted_config(const ConvertOptions& options, const arch::VitConfig& found) {
  arch::VitConfig config = found;
  if (!options.finetune) {
    if (options.image_size > 0 || options.patch_size > 0 || options.channels > 0 || options.classes > 0 ||
        !options.pool.empty()) {
      user_error({.where = "checkpoint.convert",
                  .problem = "--image-size, --patch-size, --channels, --classes and --pool have an effect "
                             "only with --to-finetune",
                  .hint = "add --to-finetune"});
    }
    return config;
  }
  config.head = arch::Head::kLinear;
  if (options.image_size > 0) config.image_size = options.image_size;
  if (options.patch_size > 0) config.patch_size = options.patch_size;
  if (options.channels > 0) config.channels = options.channels;
  if (options.classes > 0) config.classes = options.classes;
  if (options.pool == "gap") config.pool = arch::Pool::kAverage;
  if (options.pool == "cls") config.pool = arch::Pool::kClassToken;
  if (config.classes == 0) {
    user_error({.where = "checkpoint.convert",
                .problem = "the number of classes is unknown: the weights have no head",
                .hint = "give --classes N"});
  }
  arch::check(config);
  if (options.to == "tessera" && config.channels != 1 && config.channels != 3) {
    user_error({.where = "checkpoint.convert",
                .problem = concat("the model has ", config.channels, " channels"),
                .expected = "1 or 3 with --to tessera",
                .hint = "--to timm and --to hf support other numbers"});
  }
  return config;
}

/// What is written into a checkpoint of Tessera's: a source with a position of its own.
class Started final : public checkpoint::TensorSource {
 public:
  Started(std::shared_ptr<checkpoint::TensorSource> source, const weights::Description& model)
      : source_(std::move(source)) {
    progress_.model_json = checkpoint::model_json(model.config);
    progress_.json = json_text(nlohmann::json{{"classes", model.classes}});
    if (model.config.classes > 0)
      progress_.recipe_toml = recipe::to_toml(
          recipe::evaluation_recipe("converted", model.config, model.pixels));  // else no recipe can say it
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return source_->tensors(); }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    source_->read(tensor, begin, out);
  }
  const checkpoint::Progress& progress() const override { return progress_; }

 private:
  std::shared_ptr<checkpoint::TensorSource> source_;
  checkpoint::Progress progress_;
};

/// Returns what to open to read it back.
fs::path write(const ConvertOptions& options, const std::shared_ptr<checkpoint::TensorSource>& source,
               const weights::Description& model) {
  const auto started = std::make_shared<Started>(source, model);
  if (options.to == "tessera") return checkpoint::reshard(*started, options.output, options.ranks);
  weights::ExportOptions how{.dtype = options.dtype};
  if (!options.max_shard_size.empty()) how.max_shard_bytes = weights::shard_bytes_of(options.max_shard_size);
  weights::export_model(started, model, weights::family_of(options.to), options.output, how);
  return options.output;
}

/// Warns of what the written file does not hold: how images are made, sizes that neither names nor shapes of
/// tensors say, class names. Names the words of --set that give it back.
void warn_of_lost_settings(const weights::Description& model, const fs::path& written) {
  constexpr std::array kKeys = {
      "data.mean", "data.std",           "data.interpolation", "data.eval_crop", "data.eval_crop_ratio",
      "data.exif", "model.norm_epsilon", "model.heads"};
  const auto recipe_of = [](const arch::ModelConfig& config, const data::TransformOptions& pixels) {
    arch::ModelConfig with_head = config;
    if (with_head.classes() == 0) with_head.classes() = 1;  // a recipe's model has a head
    return recipe::evaluation_recipe("converted", with_head, pixels);
  };
  std::vector<std::string> sets;
  std::optional<weights::Trained> found;
  try {
    found = weights::open_trained(written);
  } catch (const UserError&) {  // a number of heads that cannot be guessed
    found = weights::open_trained(written, {.from = {}, .ema = true, .heads = model.config.heads});
    sets.push_back(concat("--set model.heads=", model.config.heads));
  }
  const recipe::Recipe wanted = recipe_of(model.config, model.pixels);
  for (const std::string& line : recipe::difference(recipe_of(found->model, found->pixels), wanted)) {
    const std::string key = line.substr(0, line.find(':'));
    if (std::ranges::find(kKeys, key) == kKeys.end()) continue;
    const std::string value = line.substr(line.rfind(" -> ") + 4);
    const bool list = value.starts_with('[');  // quoted for the shell, which takes blanks and brackets
    sets.push_back(concat("--set ", list ? "'" : "", key, '=', value, list ? "'" : ""));
  }
  if (!sets.empty()) {
    warn(concat(written.string(), " does not hold all that an evaluation needs: evaluate it with ",
                join(sets, " ")));
  }
  if (!model.classes.empty() && found->classes != model.classes) {
    warn(concat(written.string(), " does not hold the class names: tessera predict takes them with --set ",
                "data.classes=FILE, one a line"));
  }
}

double largest_difference(checkpoint::TensorSource& a, size_t tensor_a, checkpoint::TensorSource& b,
                          size_t tensor_b) {
  const int64_t count = checkpoint::count_of(a.tensors()[tensor_a].shape);
  constexpr int64_t kMost = checkpoint::kWindowBytes / sizeof(float);
  std::vector<float> left, right;
  double largest = 0;
  for (int64_t begin = 0; begin < count; begin += kMost) {
    left.resize(static_cast<size_t>(std::min(kMost, count - begin)));
    right.resize(left.size());
    a.read(tensor_a, begin, std::as_writable_bytes(std::span(left)));
    b.read(tensor_b, begin, std::as_writable_bytes(std::span(right)));
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i] != right[i]) largest = std::max(largest, std::abs(double{left[i]} - double{right[i]}));
    }
  }
  return largest;
}

/// Compares what was written with what was read, tensor by tensor.
void check_tensors(checkpoint::TensorSource& before, checkpoint::TensorSource& after,
                   const std::function<bool(size_t)>& is_same) {
  const auto index = checkpoint::numbers_by_name(before);
  size_t same = 0, compared = 0;
  double largest = 0;
  for (size_t i = 0; i < after.tensors().size(); ++i) {
    const auto at = index.find(after.tensors()[i].name);
    if (!is_same(i) || at == index.end()) continue;
    const double difference = largest_difference(before, at->second, after, i);
    largest = std::max(largest, difference);
    same += difference == 0 ? 1 : 0;
    ++compared;
  }
  std::cout << "read back: " << same << " of " << compared << " tensors are bit for bit those of the source";
  if (same < compared) std::cout << ", the others within " << largest;
  std::cout << "\n";
}

std::vector<float> formula_images(const arch::VitConfig& config) {
  std::vector<float> pixels(static_cast<size_t>(2 * config.channels * config.image_size * config.image_size));
  for (size_t i = 0; i < pixels.size(); ++i) {
    // Knuth's multiplicative hash: numbers in [-1, 1) that any program can make.
    pixels[i] =
        static_cast<float>(static_cast<double>(static_cast<uint32_t>(i * 2654435761U)) / 0x1p31 - 1.0);
  }
  return pixels;
}

/// Whether both images have the same logits, as a head of zeros gives them (its bias may be another number).
bool ignores_images(const std::vector<float>& logits) {
  const auto second = logits.begin() + static_cast<std::ptrdiff_t>(logits.size() / 2);
  return std::equal(logits.begin(), second, second, logits.end());
}

/// Without a head, or with one whose logits do not depend on the image, and so would agree whatever the
/// network computes, features are compared.
void check_outputs(const ConvertOptions& options, const arch::VitConfig& config,
                   checkpoint::TensorSource& before, checkpoint::TensorSource& after) {
  const auto images = formula_images(config);
  const auto computed = [&](checkpoint::TensorSource& weights, bool features) {
    return engine(Waiting::kSleep).logits({config, &weights, images, features});
  };
  std::vector<float> expected, found;
  if (config.classes > 0) {
    expected = computed(before, /*features=*/false);
    found = computed(after, /*features=*/false);
  }
  const bool features = ignores_images(expected) && ignores_images(found);
  if (features) {
    std::cout << (config.classes == 0 ? "logit check: there is no head; features are compared instead\n"
                                      : "logit check: all images have the same logits (a head of zeros); "
                                        "features are compared instead\n");
    expected = computed(before, /*features=*/true);
    found = computed(after, /*features=*/true);
  }
  double difference = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(double{expected[i]} - double{found[i]}));
    largest = std::max(largest, std::abs(double{expected[i]}));
  }
  std::cout << (features ? "feature" : "logit") << " check: 2 images of a formula, " << expected.size() / 2
            << (features ? " features" : " logits") << " each up to " << largest << ": largest difference "
            << difference << "\n";
  TESSERA_CHECK_EQ(expected.size(), found.size());
  TESSERA_CHECK(options.dtype != "F32" || difference <= kTolerance * std::max(1.0, largest), difference);
}

void check_options(const ConvertOptions& options) {
  if (options.to != "tessera") {
    static_cast<void>(weights::family_of(options.to));
  } else if (options.dtype != "F32") {
    user_error({.where = "checkpoint.convert",
                .problem = concat("--dtype is ", options.dtype),
                .expected = "F32 with --to tessera, whose weights are float32"});
  }
  if (!options.max_shard_size.empty()) {
    static_cast<void>(weights::shard_bytes_of(options.max_shard_size));
    if (options.to != "hf") {
      user_error({.where = "checkpoint.convert",
                  .problem = concat("--max-shard-size has no effect with --to ", options.to),
                  .expected = "--to hf"});
    }
  }
  if (weights::head_start_of(options.head) == weights::HeadStart::kFresh) {
    user_error({.where = "checkpoint.convert",
                .problem = "--head is fresh, which a file cannot hold",
                .expected = "auto, keep or zero"});
  }
  if (!options.pool.empty() && options.pool != "gap" && options.pool != "cls")
    user_error({.where = "checkpoint.convert",
                .problem = concat("--pool is \"", escape(options.pool), '"'),
                .expected = "gap or cls"});
}

int convert(const ConvertOptions& options) {
  check_options(options);
  weights::Model input = open(options);
  weights::Description model = input.description;
  std::cout << "read " << input.file.string() << " (" << weights::to_string(model.family) << ": "
            << model.variant << "): " << arch::describe(model.config) << ", " << model.config.classes
            << (model.config.classes == 1 ? " class" : " classes") << "\n";
  for (const auto& note : model.notes) std::cout << "  " << note << "\n";
  const std::shared_ptr<checkpoint::TensorSource> source = std::move(input.tensors);
  const arch::VitConfig found = model.config;
  model.config = wanted_config(options, found);
  std::shared_ptr<checkpoint::TensorSource> result = source;
  std::function<bool(size_t)> is_same = [](size_t) { return true; };
  if (options.finetune) {
    const auto finetuned = std::make_shared<weights::FinetunedSource>(
        source, found, model.config,
        weights::FinetuneOptions{weights::resampling_of(options.positions),
                                 weights::head_start_of(options.head),
                                 static_cast<float>(options.head_bias)});
    for (const auto& change : finetuned->changes()) std::cout << "  " << change << "\n";
    if (model.config.classes != found.classes) model.classes.clear();
    if (model.config.channels != found.channels) {
      model.pixels.mean = weights::adapt_pixels(model.pixels.mean);
      model.pixels.std = weights::adapt_pixels(model.pixels.std);
    }
    is_same = [finetuned](size_t i) { return finetuned->is_same(i); };
    result = finetuned;
  }
  if (model.config.classes == 0 && options.to == "tessera") {
    user_error({.where = "checkpoint.convert",
                .problem = "the weights have no head",
                .hint = "give --to-finetune --classes N"});
  }
  const fs::path written = write(options, result, model);
  std::cout << "wrote " << written.string() << "\n";
  if (options.to != "tessera") warn_of_lost_settings(model, written);
  if (options.no_check) return kExitDone;
  weights::OpenOptions how;
  how.heads = model.config.heads;
  weights::Model again = weights::open_model(written, how);
  // What is read back has the names of the written model in the same order; what changed is not compared.
  check_tensors(*source, *again.tensors, is_same);
  check_outputs(options, model.config, *result, *again.tensors);
  return kExitDone;
}

}  // namespace

std::function<int()> add_convert(CLI::App* command) {
  const auto options = std::make_shared<ConvertOptions>();
  CLI::App* tool = command->add_subcommand(
      "convert", "Convert weights from and to the formats of timm, torchvision, Hugging Face and Google");
  tool->add_option("IN", options->input, "Run folder, checkpoint folder, weights file or Hugging Face folder")
      ->required();
  tool->add_option("OUT", options->output,
                   "Folder of checkpoints (--to tessera), folder (--to hf) or file to write")
      ->required();
  tool->add_option("--from", options->from,
                   "Format of IN: timm, torchvision, hf, npz or big_vision (default: auto-detected)");
  tool->add_option("--to", options->to, "Format of OUT: tessera, timm, torchvision, hf, npz or big_vision")
      ->default_val("tessera");
  tool->add_option("--dtype", options->dtype,
                   "Dtype of the weights: F32, F16 or BF16; --to tessera writes F32 only")
      ->default_val("F32");
  tool->add_option(
      "--max-shard-size", options->max_shard_size,
      "With --to hf: largest size of a file, such as 500MB; larger models are split (default: 5GB)");
  tool->add_option("--heads", options->heads,
                   "Number of attention heads, if IN does not contain it (0 = from IN)")
      ->check(CLI::Range(0, 65536));
  tool->add_flag("--no-ema", options->no_ema,
                 "Convert the weights of a checkpoint even if it has a moving average of them");
  tool->add_flag("--to-finetune", options->finetune,
                 "Prepare the weights for fine-tuning; the options below say how");
  tool->add_option("--image-size", options->image_size,
                   "With --to-finetune: new image size in pixels; position embeddings are resampled")
      ->check(CLI::Range(0, 65536));
  tool->add_option("--patch-size", options->patch_size,
                   "With --to-finetune: new patch size in pixels; the patch embedding is resampled")
      ->check(CLI::Range(0, 65536));
  tool->add_option(
          "--channels", options->channels,
          "With --to-finetune: new number of image channels; patch embedding weights are summed or repeated")
      ->check(CLI::Range(0, 1024));
  tool->add_option("--classes", options->classes, "With --to-finetune: new number of classes")
      ->check(CLI::Range(0, 134217728));
  tool->add_option(
          "--pos", options->positions,
          "With --to-finetune: resampling of position embeddings, bicubic (timm) or linear (big_vision)")
      ->default_val("bicubic");
  tool->add_option("--head", options->head,
                   "With --to-finetune: keep the classifier, zero it, or auto = keep if the number of "
                   "classes is equal")
      ->default_val("auto");
  tool->add_option("--head-bias", options->head_bias,
                   "With --to-finetune: bias of a classifier that --head sets to zero")
      ->default_val("0");
  tool->add_option(
      "--pool", options->pool,
      "With --to-finetune: pooling, gap or cls; a LayerNorm that IN lacks starts as the identity");
  tool->add_option("--ranks", options->ranks, "With --to tessera: number of shard files to write")
      ->default_val("1");
  tool->add_flag("--no-check", options->no_check, "Skip the comparison of tensors and logits after writing");
  tool->footer(kConvertFooter);
  return [options] { return convert(*options); };
}

}  // namespace tessera::cli
