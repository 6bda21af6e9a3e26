// SPDX-License-Identifier: Apache-2.0
// The rows of [data].
#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {

void add_source_options(std::vector<Option>& table) {
  using data::Order, data::Remainder;
  const std::vector<Option> rows = {
      path("data.source",
           "Data set (required): folder:, zip:, wds:, tfrecord:, idx: or cifar: and a path, or fake:N images",
           TESSERA_FIELD(data.source)),
      text("data.train", "Split to train on, such as \"train\", \"train[:99%]\" or \"train+extra\"",
           TESSERA_FIELD(data.train)),
      text("data.val", "Split to evaluate on, written as in data.train, such as \"val\" or \"train[99%:]\"",
           TESSERA_FIELD(data.val)),
      flag("data.allow_overlap",
           "Only warn if data.val contains samples of data.train; false = refuse to run",
           TESSERA_FIELD(data.allow_overlap)),
      paths("data.mix",
            "Additional training sources, written as data.source; data.source must contain all their classes",
            TESSERA_FIELD(data.mix)),
      texts("data.mix_train",
            "Training splits of the data.mix sources: one for all or one for each; [] = data.train",
            TESSERA_FIELD(data.mix_train)),
      numbers("data.mix_weights",
              "Sampling weights, one for data.source and each of data.mix; [] = every sample once per epoch",
              {0, 1e12, true}, TESSERA_FIELD(data.mix_weights)),
      choice<Order>(
          "data.order",
          "Training order: random (shuffle), a few shard files at a time (shards) or as listed (sequential)",
          {{"shuffle", Order::kShuffle}, {"shards", Order::kShards}, {"sequential", Order::kSequential}},
          TESSERA_FIELD(data.order.order)),
      integer("data.mixed_shards",
              "Only for order = \"shards\": number of shard files whose samples are shuffled together",
              {1, 1 << 20}, TESSERA_FIELD(data.order.mixed_shards)),
      choice<Remainder>(
          "data.remainder",
          "Last samples of an epoch, too few for a batch: drop, keep as short batch, or carry into next "
          "epoch",
          {{"drop", Remainder::kDrop}, {"keep", Remainder::kKeep}, {"carry", Remainder::kCarry}},
          TESSERA_FIELD(data.order.remainder)),
      integer("data.repeats",
              "Copies of each sample in a batch, each augmented separately (timm: --aug-repeats); 1 = off",
              {1, 1 << 10}, TESSERA_FIELD(data.order.repeats)),
      text("data.ram_cache",
           "Cache encoded training images in host memory: none, part (up to ram_cache_gib) or full",
           TESSERA_FIELD(data.ram_cache), {"none", "part", "full"}),
      number("data.ram_cache_gib",
             "Only for ram_cache = \"part\", which needs it: largest size of the cache per host, in GiB",
             {0, 1 << 20}, TESSERA_FIELD(data.ram_cache_gib)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

// (Longer than 60 lines: a table.)
void add_data_options(std::vector<Option>& table) {
  using data::ErasingMode, data::EvalCrop, data::TrainCrop;
  const std::vector<Option> rows = {
      integer("data.workers",
              "Decoding threads per rank (timm: --workers); -1 = the cores left by run.threads, at least 1",
              {-1, 1024}, TESSERA_FIELD(data.workers)),
      integer("data.prefetch", "Number of micro-batches per rank that are decoded ahead of training",
              {1, 4096}, TESSERA_FIELD(data.prefetch)),
      text("data.on_error",
           "What to do about unreadable images: skip with a warning (see error_limit) or fail at the first",
           TESSERA_FIELD(data.on_error), {"skip", "fail"}),
      number("data.error_limit",
             "Only for on_error = \"skip\": fraction of unreadable images above which the run stops", {0, 1},
             TESSERA_FIELD(data.error_limit)),
      path("data.index_dir",
           "Folder for cached sample indexes; \"beside\" = with the data, \"none\" = off, \"\" = in "
           "~/.cache/tessera",
           TESSERA_FIELD(data.index_dir), {"beside", "none"}),
      text("data.image_key",
           "Image field: tfrecord feature name or wds file extension, such as \"jpg\"; \"\" = auto-detect",
           TESSERA_FIELD(data.image_key)),
      text("data.label_key",
           "Label field: tfrecord feature name, wds file extension or \"json:FIELD\"; \"\" = auto-detect",
           TESSERA_FIELD(data.label_key)),
      integer("data.label_offset",
              "Integer added to each label of zip, wds and tfrecord data; -1 if labels start at 1",
              {-1e6, 1e6}, TESSERA_FIELD(data.label_offset)),
      path("data.classes",
           "File of class names, one per line, for zip, wds and tfrecord; \"\" = classes.txt with the data",
           TESSERA_FIELD(data.classes)),
      choice<TrainCrop>("data.crop",
                        "Training crop; center = as eval, none = squash, pad = squash + shift, "
                        "squash_random = squash + cut",
                        {{"none", TrainCrop::kNone},
                         {"random_resized", TrainCrop::kRandomResized},
                         {"inception", TrainCrop::kInception},
                         {"center", TrainCrop::kCenter},
                         {"pad", TrainCrop::kPad},
                         {"squash_random", TrainCrop::kSquashRandom}},
                        TESSERA_FIELD(data.transform.train_crop)),
      pair("data.crop_scale",
           "Min and max area of random_resized and inception crops, as image fraction (timm: --scale)",
           {0, 1, true}, TESSERA_FIELD(data.transform.crop_scale_min),
           TESSERA_FIELD(data.transform.crop_scale_max)),
      pair("data.crop_ratio",
           "Min and max width / height of random_resized and inception crops (timm: --ratio)", {0, 100, true},
           TESSERA_FIELD(data.transform.crop_ratio_min), TESSERA_FIELD(data.transform.crop_ratio_max)),
      integer("data.crop_padding",
              "Only for crop = \"pad\": zero padding on each side before the random crop, in pixels",
              {0, 1024}, TESSERA_FIELD(data.transform.crop_padding)),
      integer("data.crop_from",
              "Only for crop = \"squash_random\": size in pixels before the crop; 0 = 8/7 of image_size",
              {0, 1 << 16}, TESSERA_FIELD(data.transform.crop_from)),
      flag("data.flip", "Flip training images horizontally with probability 1/2 (timm: --hflip 0.5)",
           TESSERA_FIELD(data.transform.flip)),
      text("data.auto_augment",
           "AutoAugment policy (timm: --aa), such as \"rand-m9-mstd0.5-inc1\", \"3a\" or \"ta_wide\"; \"\" = "
           "off",
           TESSERA_FIELD(data.transform.augment.policy)),
      choice<bool>("data.augment_interpolation",
                   "Interpolation in auto_augment: as data.interpolation (same), bilinear or bicubic at "
                   "random (random)",
                   {{"same", false}, {"random", true}},
                   TESSERA_FIELD(data.transform.augment.random_interpolation)),
      floats("data.color_jitter",
             "Factor 1-x..1+x of brightness, contrast, saturation (4th: hue, at most 0.5); [x] = all 3; [] = "
             "off",
             {0, 1000}, TESSERA_FIELD(data.transform.augment.color_jitter)),
      number("data.erasing", "Probability of random erasing in a training image (timm: --reprob); 0 = off",
             {0, 1}, TESSERA_FIELD(data.transform.augment.erasing)),
      choice<ErasingMode>(
          "data.erasing_mode",
          "Fill of erased boxes (timm: --remode): mean colour (const), one random colour (rand), noise "
          "(pixel)",
          {{"const", ErasingMode::kConst}, {"rand", ErasingMode::kRand}, {"pixel", ErasingMode::kPixel}},
          TESSERA_FIELD(data.transform.augment.erasing_mode)),
      integer("data.erasing_count",
              "Largest number of erased boxes per image (timm: --recount); they share erasing_area",
              {1, 1000}, TESSERA_FIELD(data.transform.augment.erasing_count)),
      pair("data.erasing_area", "Min and max area that random erasing covers, as a fraction of the image",
           {0, 1}, TESSERA_FIELD(data.transform.augment.erasing_area_min),
           TESSERA_FIELD(data.transform.augment.erasing_area_max)),
      choice<EvalCrop>(
          "data.eval_crop",
          "Evaluation: centre crop (center), resize to a square (squash), or resize and crop (squash_center)",
          {{"squash", EvalCrop::kSquash},
           {"center", EvalCrop::kCenter},
           {"squash_center", EvalCrop::kSquashCenter}},
          TESSERA_FIELD(data.transform.eval_crop)),
      number("data.eval_crop_ratio",
             "Crop size / resized size in evaluation (timm: --crop-pct); unused for eval_crop = \"squash\"",
             {0, 1, true}, TESSERA_FIELD(data.transform.eval_crop_ratio)),
      choice<bool>("data.interpolation",
                   "Interpolation of every resize, in training and evaluation; always antialiased",
                   {{"bilinear", false}, {"bicubic", true}}, TESSERA_FIELD(data.transform.bicubic)),
      flag("data.exif",
           "Rotate images as their EXIF orientation says; false = ignore it, as torchvision and timm do",
           TESSERA_FIELD(data.transform.exif)),
      flag("data.dct_scaling",
           "Decode training JPEGs at 1/2, 1/4 or 1/8 size where the crop stays large enough; faster",
           TESSERA_FIELD(data.transform.dct_scaling)),
      floats(
          "data.mean",
          "Mean of pixels in 0..1: one value or one per channel (timm: --mean); grey models default to 0.449",
          {-1e6, 1e6}, TESSERA_FIELD(data.transform.mean)),
      floats("data.std",
             "Divisor of pixels in 0..1: one value or one per channel (timm: --std); grey models default to "
             "0.226",
             {1e-6, 1e6}, TESSERA_FIELD(data.transform.std)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

}  // namespace tessera::recipe
