// The table of every option: key, field, range or choices, help. It alone decides which TOML keys there are,
// what --set takes, what --help says and what a saved recipe holds.
#include <charconv>

#include "tessera/base/error.h"
#include "tessera/recipe/option.h"

namespace tessera::recipe {
namespace {

// A field of the recipe, for reading and for writing.
#define FIELD(path) \
  [](auto& recipe) -> auto& { return recipe.path; }

Option row(std::string key, Type type, std::string help, Range range = {}) {
  Option option;
  option.key = std::move(key);
  option.type = type;
  option.help = std::move(help);
  option.range = range;
  return option;
}

template <typename Field>
Option flag(std::string key, std::string help, Field field) {
  Option option = row(std::move(key), Type::kBool, std::move(help));
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<bool>(v); };
  option.get = [field](const Recipe& r) -> Value { return static_cast<bool>(field(r)); };
  return option;
}

template <typename Field>
Option integer(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kInteger, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<int64_t>(v); };
  option.get = [field](const Recipe& r) -> Value { return static_cast<int64_t>(field(r)); };
  return option;
}

template <typename Field>
Option number(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kNumber, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<double>(v); };
  option.get = [field](const Recipe& r) -> Value { return static_cast<double>(field(r)); };
  return option;
}

template <typename Field>
Option text(std::string key, std::string help, Field field, std::vector<std::string> choices = {}) {
  Option option = row(std::move(key), Type::kText, std::move(help));
  option.choices = std::move(choices);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<std::string>(v); };
  option.get = [field](const Recipe& r) -> Value { return field(r); };
  return option;
}

template <typename Field>
Option texts(std::string key, std::string help, Field field) {
  Option option = row(std::move(key), Type::kTexts, std::move(help));
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<std::vector<std::string>>(v); };
  option.get = [field](const Recipe& r) -> Value { return field(r); };
  return option;
}

template <typename Field>
Option numbers(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<std::vector<double>>(v); };
  option.get = [field](const Recipe& r) -> Value { return field(r); };
  return option;
}

template <typename Field>
Option path(std::string key, std::string help, Field field, std::vector<std::string> words = {}) {
  Option option = text(std::move(key), std::move(help), field);
  option.path = true;
  option.words = std::move(words);
  return option;
}

template <typename Field>
Option paths(std::string key, std::string help, Field field) {
  Option option = texts(std::move(key), std::move(help), field);
  option.path = true;
  return option;
}

/// An enum (or bool) field whose values have names.
template <typename Enum, typename Field>
Option choice(std::string key, std::string help, std::vector<std::pair<std::string, Enum>> names,
              Field field) {
  Option option = row(std::move(key), Type::kText, std::move(help));
  for (const auto& [name, value] : names) option.choices.push_back(name);
  option.set = [field, names](Recipe& r, const Value& v) {
    for (const auto& [name, value] : names) {
      if (name == std::get<std::string>(v)) field(r) = value;
    }
  };
  option.get = [field, names](const Recipe& r) -> Value {
    for (const auto& [name, value] : names) {
      if (field(r) == value) return name;
    }
    TESSERA_CHECK(false, "a value without a name");
    return {};
  };
  return option;
}

/// Two fields as [least, most].
template <typename Low, typename High>
Option pair(std::string key, std::string help, Range range, Low low, High high) {
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.length = 2;
  option.set = [low, high](Recipe& r, const Value& v) {
    const auto& values = std::get<std::vector<double>>(v);
    low(r) = values.at(0);
    high(r) = values.at(1);
  };
  option.get = [low, high](const Recipe& r) -> Value { return std::vector<double>{low(r), high(r)}; };
  return option;
}

/// The double with the float's own shortest text: 0.485F becomes 0.485.
double widen(float value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  double wide = 0;
  std::from_chars(buffer, end, wide);
  return wide;
}

template <typename Field>
Option floats(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) {
    field(r).clear();
    for (const double value : std::get<std::vector<double>>(v)) field(r).push_back(static_cast<float>(value));
  };
  option.get = [field](const Recipe& r) -> Value {
    std::vector<double> wide;
    for (const float value : field(r)) wide.push_back(widen(value));
    return wide;
  };
  return option;
}

/// A key that stands for others; read.cpp knows what it does.
Option shorthand(std::string key, Type type, std::string help, Range range = {}) {
  Option option = row(std::move(key), type, std::move(help), range);
  option.set = [](Recipe&, const Value&) {};
  return option;
}

constexpr Range kRate{0, 1, false, true};  // [0, 1)
constexpr Range kCount{0, 1e12};

void add_model(std::vector<Option>& table) {
  using arch::Head, arch::Pool, arch::PositionEmbedding;
  const std::vector<Option> rows = {
      shorthand(
          "model.preset", Type::kText,
          "named size that sets all of [model]; other keys then win (\"S/16\", \"vit_small_patch16_224\")"),
      integer("model.image_size", "pixels, square", {1, 1 << 16}, FIELD(model.image_size)),
      integer("model.patch_size", "pixels, divides image_size", {1, 1 << 16}, FIELD(model.patch_size)),
      integer("model.channels", "1: grey, 3: RGB", {1, 3}, FIELD(model.channels)),
      integer("model.width", "numbers a token", {1, 1 << 20}, FIELD(model.width)),
      integer("model.depth", "blocks", {1, 4096}, FIELD(model.depth)),
      integer("model.heads", "attention heads, divide width", {1, 1 << 16}, FIELD(model.heads)),
      integer("model.mlp_width", "hidden width; where only width is given it keeps the preset's ratio",
              {1, 1 << 22}, FIELD(model.mlp_width)),
      shorthand("model.mlp_ratio", Type::kNumber, "mlp_width as a multiple of width", {0, 1024, true}),
      integer("model.classes", "outputs", {1, 1 << 27}, FIELD(model.classes)),
      integer("model.registers", "register tokens", {0, 1 << 16}, FIELD(model.registers)),
      flag("model.class_token", "a token that pool = \"cls\" reads", FIELD(model.class_token)),
      choice<Pool>("model.pool", "class token, average of the patches, or attention pool",
                   {{"cls", Pool::kClassToken}, {"gap", Pool::kAverage}, {"map", Pool::kAttention}},
                   FIELD(model.pool)),
      choice<PositionEmbedding>(
          "model.position_embedding", "trained, or fixed sines and cosines",
          {{"learned", PositionEmbedding::kLearned}, {"sincos2d", PositionEmbedding::kSinCos2d}},
          FIELD(model.position_embedding)),
      choice<Head>("model.head", "one layer, or two with tanh between",
                   {{"linear", Head::kLinear}, {"tanh", Head::kTanh}}, FIELD(model.head)),
      flag("model.qk_norm", "LayerNorm on queries and keys", FIELD(model.qk_norm)),
      number("model.layer_scale", "initial value of LayerScale; 0: none", {0, 1e6}, FIELD(model.layer_scale)),
      number("model.drop_path", "rate of the last block; earlier ones linearly less", kRate,
             FIELD(model.drop_path)),
      number("model.dropout", "rate after positions, projections and MLPs", kRate, FIELD(model.dropout)),
      number("model.norm_epsilon", "of every LayerNorm", {0, 1, true}, FIELD(model.norm_epsilon)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_sources(std::vector<Option>& table) {
  using data::Order, data::Remainder;
  const std::vector<Option> rows = {
      path("data.source",
           "folder:PATH, zip:PATH, wds:SHARDS, tfrecord:PATH, idx:PATH, cifar:PATH or fake:IMAGES "
           "(docs/data.md)",
           FIELD(data.source)),
      text("data.train", "split to train on: train, train[:99%], train+extra", FIELD(data.train)),
      text("data.val", "split to evaluate on, likewise", FIELD(data.val)),
      paths("data.mix", "further sources to train on, with the classes of data.source", FIELD(data.mix)),
      texts("data.mix_train", "their splits: one for all or one each; empty: that of data.train",
            FIELD(data.mix_train)),
      numbers("data.mix_weights", "of data.source and each of data.mix; empty: by size", {0, 1e12, true},
              FIELD(data.mix_weights)),
      choice<Order>(
          "data.order", "of the training samples; shards: some archive files at a time",
          {{"shuffle", Order::kShuffle}, {"shards", Order::kShards}, {"sequential", Order::kSequential}},
          FIELD(data.order.order)),
      integer("data.mixed_shards", "order = \"shards\": files that are mixed with each other", {1, 1 << 20},
              FIELD(data.order.mixed_shards)),
      choice<Remainder>(
          "data.remainder", "an epoch's last samples, too few for a batch; keep: a short step",
          {{"drop", Remainder::kDrop}, {"keep", Remainder::kKeep}, {"carry", Remainder::kCarry}},
          FIELD(data.order.remainder)),
      integer("data.repeats", "copies of each sample in a global batch, each augmented anew", {1, 1 << 10},
              FIELD(data.order.repeats)),
      text("data.ram_cache", "encoded training samples kept in memory, one copy a host",
           FIELD(data.ram_cache), {"none", "part", "full"}),
      number("data.ram_cache_gib", "ram_cache = \"part\": GiB a host, at most", {0, 1 << 20},
             FIELD(data.ram_cache_gib)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_data(std::vector<Option>& table) {
  using data::ErasingMode, data::EvalCrop, data::TrainCrop;
  const std::vector<Option> rows = {
      integer("data.workers", "decoding threads a rank; -1: what the machine has to spare", {-1, 1024},
              FIELD(data.workers)),
      integer("data.prefetch", "micro-batches decoded ahead", {1, 4096}, FIELD(data.prefetch)),
      text("data.on_error", "what a broken image does", FIELD(data.on_error), {"skip", "fail"}),
      number("data.error_limit", "share of broken images above which the run stops", {0, 1},
             FIELD(data.error_limit)),
      path("data.index_dir",
           "folder of index files ({split} is replaced), \"beside\" the data or \"none\"; \"\": the user's "
           "cache",
           FIELD(data.index_dir), {"beside", "none"}),
      text("data.image_key", "of the image: tfrecord's feature, wds's ending; \"\": found out",
           FIELD(data.image_key)),
      text("data.label_key",
           "of the label: tfrecord's feature, wds's ending or \"json:field\"; \"\": found out",
           FIELD(data.label_key)),
      integer("data.label_offset", "added to each label of zip, wds, tfrecord; -1 where they count from 1",
              {-1e6, 1e6}, FIELD(data.label_offset)),
      path("data.classes", "file of class names, one a line; \"\": classes.txt beside the data, else numbers",
           FIELD(data.classes)),
      choice<TrainCrop>("data.crop",
                        "for training; none: squash; random_resized: torchvision's; inception: TensorFlow's; "
                        "center: as in evaluation",
                        {{"none", TrainCrop::kNone},
                         {"random_resized", TrainCrop::kRandomResized},
                         {"inception", TrainCrop::kInception},
                         {"center", TrainCrop::kCenter},
                         {"pad", TrainCrop::kPad}},
                        FIELD(data.transform.train_crop)),
      pair("data.crop_scale", "random_resized, inception: least and most share of the area", {0, 1, true},
           FIELD(data.transform.crop_scale_min), FIELD(data.transform.crop_scale_max)),
      pair("data.crop_ratio", "random_resized, inception: least and most width / height", {0, 100, true},
           FIELD(data.transform.crop_ratio_min), FIELD(data.transform.crop_ratio_max)),
      integer("data.crop_padding", "pad: pixels on each side", {0, 1024}, FIELD(data.transform.crop_padding)),
      flag("data.flip", "mirror half of the training images", FIELD(data.transform.flip)),
      text("data.auto_augment",
           "\"rand-m9-mstd0.5-inc1\", \"original\", \"v0\", \"3a\", \"ta_wide\", \"bv-randaug:2,15\", "
           "\"tv-randaug:2,9\"; empty: none",
           FIELD(data.transform.augment.policy)),
      choice<bool>("data.augment_interpolation",
                   "of rotations, shears, translations: as data.interpolation, or drawn",
                   {{"same", false}, {"random", true}}, FIELD(data.transform.augment.random_interpolation)),
      floats("data.color_jitter",
             "[all], [brightness, contrast, saturation] or these and hue: factors of 1 - x to 1 + x; empty: "
             "none",
             {0, 1000}, FIELD(data.transform.augment.color_jitter)),
      number("data.erasing", "probability of random erasing", {0, 1}, FIELD(data.transform.augment.erasing)),
      choice<ErasingMode>(
          "data.erasing_mode", "zeros, one random colour, or noise",
          {{"const", ErasingMode::kConst}, {"rand", ErasingMode::kRand}, {"pixel", ErasingMode::kPixel}},
          FIELD(data.transform.augment.erasing_mode)),
      integer("data.erasing_count", "boxes of an image, at most; they share the area", {1, 1000},
              FIELD(data.transform.augment.erasing_count)),
      pair("data.erasing_area", "least and most share of the image that is erased", {0, 1},
           FIELD(data.transform.augment.erasing_area_min), FIELD(data.transform.augment.erasing_area_max)),
      choice<EvalCrop>("data.eval_crop", "for evaluation: whole image squashed, or its centre",
                       {{"squash", EvalCrop::kSquash}, {"center", EvalCrop::kCenter}},
                       FIELD(data.transform.eval_crop)),
      number("data.eval_crop_ratio", "center: short side becomes image_size / this", {0, 1, true},
             FIELD(data.transform.eval_crop_ratio)),
      choice<bool>("data.interpolation", "of every resize", {{"bilinear", false}, {"bicubic", true}},
                   FIELD(data.transform.bicubic)),
      flag("data.exif", "turn photos as their EXIF orientation says; torchvision and timm do not",
           FIELD(data.transform.exif)),
      flag("data.dct_scaling", "training: decode JPEGs at 1/2, 1/4 or 1/8 where the crop stays large enough",
           FIELD(data.transform.dct_scaling)),
      floats("data.mean", "of a channel, pixels 0..1; one number or one a channel; default: ImageNet's",
             {-1e6, 1e6}, FIELD(data.transform.mean)),
      floats("data.std", "of a channel, likewise", {1e-6, 1e6}, FIELD(data.transform.std)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_training(std::vector<Option>& table) {
  using data::MixMode;
  const std::vector<Option> rows = {
      integer("train.batch", "images of one step over all ranks", {0, 1e9}, FIELD(train.batch)),
      integer("train.batch_per_rank", "images of one micro-batch of one rank", {0, 1e9},
              FIELD(train.batch_per_rank)),
      integer("train.accumulation", "micro-batches a step; any two of these three fix the third", {0, 1e6},
              FIELD(train.accumulation)),
      number("train.epochs", "passes over the data; this or steps", {0, 1e9}, FIELD(train.epochs)),
      integer("train.steps", "optimizer steps; this or epochs", kCount, FIELD(train.steps)),
      integer("train.seed", "of weights, order, augmentation and dropout", {0, 9223372036854775807.0},
              FIELD(train.seed)),
      number("train.eval_every_epochs", "0: only at the end", {0, 1e9}, FIELD(train.eval_every_epochs)),
      integer("train.eval_every_steps", "where given it wins over eval_every_epochs", kCount,
              FIELD(train.eval_every_steps)),
      integer("train.eval_batch", "images a rank; 0: that of training", {0, 1e9}, FIELD(train.eval_batch)),
      flag("train.eval_first", "also before the first step", FIELD(train.eval_first)),
      integer("train.log_every", "steps between lines", {1, 1e9}, FIELD(train.log_every)),
      number("train.clip", "largest norm of the whole gradient; 0: off", {0, 1e9}, FIELD(train.clip)),
      number("train.label_smoothing", "share of the label spread over all classes", kRate,
             FIELD(train.label_smoothing)),
      number("train.mixup", "alpha of Mixup; 0: off", {0, 1e6}, FIELD(train.mix.mixup)),
      number("train.cutmix", "alpha of CutMix; 0: off", {0, 1e6}, FIELD(train.mix.cutmix)),
      floats("train.cutmix_minmax",
             "least and most share of a side of CutMix's box, instead of an alpha; empty: none", {0, 1},
             FIELD(train.mix.cutmix_minmax)),
      number("train.mix_prob", "probability of mixing at all", {0, 1}, FIELD(train.mix.probability)),
      number("train.mix_switch_prob", "probability of CutMix where both are on", {0, 1},
             FIELD(train.mix.switch_probability)),
      choice<MixMode>("train.mix_mode", "what shares a draw: mix_group images, two partners, or none",
                      {{"batch", MixMode::kBatch}, {"pair", MixMode::kPair}, {"elem", MixMode::kElement}},
                      FIELD(train.mix.mode)),
      integer("train.mix_group", "batch: consecutive images of the global batch that share a draw", {1, 1e9},
              FIELD(train.mix.group)),
      integer("train.mix_off_epoch", "from this epoch on nothing is mixed; 0: never", {0, 1e9},
              FIELD(train.mix.off_epoch)),
      flag("train.mix_at_least_half", "Mixup keeps the larger share of an image itself, as big_vision",
           FIELD(train.mix.at_least_half)),
      text("optimizer.name",
           "AdamW with decoupled weight decay; LAMB: the same, a matrix's step as long as its norm says",
           FIELD(optimizer.name), {"adamw", "lamb"}),
      number("optimizer.lr", "learning rate after warmup", {0, 1000}, FIELD(optimizer.lr)),
      number("optimizer.beta1", "decay of the mean gradient", kRate, FIELD(optimizer.beta1)),
      number("optimizer.beta2", "decay of the mean square", kRate, FIELD(optimizer.beta2)),
      number("optimizer.epsilon", "added to the root of the mean square", {0, 1, true},
             FIELD(optimizer.epsilon)),
      number("optimizer.weight_decay", "times lr, on matrices only", {0, 1000},
             FIELD(optimizer.weight_decay)),
      text("schedule.name", "from lr to min_lr after warmup; constant: stays at lr", FIELD(schedule.name),
           {"cosine", "linear", "constant"}),
      number("schedule.warmup_epochs", "linear from warmup_from to lr; this or warmup_steps", {0, 1e9},
             FIELD(schedule.warmup_epochs)),
      integer("schedule.warmup_steps", "this or warmup_epochs", kCount, FIELD(schedule.warmup_steps)),
      number("schedule.warmup_from", "learning rate of the first step", {0, 1000},
             FIELD(schedule.warmup_from)),
      number("schedule.min_lr", "learning rate at the end", {0, 1000}, FIELD(schedule.min_lr)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_machine(std::vector<Option>& table) {
  using plan::Level, plan::Offload;
  const std::vector<Option> rows = {
      choice<Level>("shard.level", "what is split over the ranks",
                    {{"replicate", Level::kReplicate},
                     {"zero1", Level::kZero1},
                     {"zero2", Level::kZero2},
                     {"zero3", Level::kZero3}},
                    FIELD(shard.level)),
      flag("shard.recompute", "compute blocks again in backward instead of keeping them",
           FIELD(shard.recompute)),
      text("shard.units", "units with a level of their own: \"blocks.0-19=replicate, head=zero3+recompute\"",
           FIELD(shard.units)),
      integer("shard.prefetch", "units gathered ahead; 0: nothing overlaps", {0, 64}, FIELD(shard.prefetch)),
      choice<Offload>("shard.offload",
                      "what of a rank's share lies in the host's memory, not where units compute",
                      {{"none", Offload::kNone}, {"optimizer", Offload::kOptimizer}, {"all", Offload::kAll}},
                      FIELD(shard.offload)),
      choice<Dtype>("precision.compute", "auto: bf16 where the CPU has AMX",
                    {{"auto", Dtype::kAuto}, {"fp32", Dtype::kFloat32}, {"bf16", Dtype::kBFloat16}},
                    FIELD(precision.compute)),
      choice<Dtype>("precision.reduce", "of gradients on the wire",
                    {{"fp32", Dtype::kFloat32}, {"bf16", Dtype::kBFloat16}}, FIELD(precision.reduce)),
      path("checkpoint.dir", "folder of the checkpoints, may be each host's own; empty: in the run's folder",
           FIELD(checkpoint.dir)),
      number("checkpoint.every_epochs", "0: only at the end and on a signal", {0, 1e9},
             FIELD(checkpoint.every_epochs)),
      integer("checkpoint.every_steps", "where given it wins over every_epochs", kCount,
              FIELD(checkpoint.every_steps)),
      integer("checkpoint.keep", "newest ones to keep, besides the best", {1, 1e6}, FIELD(checkpoint.keep)),
      flag("checkpoint.async", "training waits for a copy only, 12 bytes a parameter of the rank's share",
           FIELD(checkpoint.async)),
      path("run.dir", "folder of the run; empty: runs/<name>", FIELD(run.dir)),
      integer("run.threads", "compute threads a rank; 0: cores / local ranks", {0, 4096}, FIELD(run.threads)),
      number("run.timeout", "seconds a collective may wait", {0, 1e6, true}, FIELD(run.timeout)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

#undef FIELD

std::vector<Option> make_options() {
  std::vector<Option> table = {text(
      "name", "of the run", [](auto& recipe) -> auto& { return recipe.name; })};
  add_model(table);
  add_sources(table);
  add_data(table);
  add_training(table);
  add_machine(table);
  return table;
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = make_options();
  return table;
}

}  // namespace tessera::recipe
