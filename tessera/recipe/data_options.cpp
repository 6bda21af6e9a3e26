// SPDX-License-Identifier: Apache-2.0
// The rows of [data].
#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {

void add_source_options(std::vector<Option>& table) {
  using data::Order, data::Remainder;
  const std::vector<Option> rows = {
      path("data.source",
           "folder:PATH, zip:PATH, wds:SHARDS, tfrecord:PATH, idx:PATH, cifar:PATH or fake:IMAGES "
           "(docs/data.md)",
           TESSERA_FIELD(data.source)),
      text("data.train", "split to train on: train, train[:99%], train+extra", TESSERA_FIELD(data.train)),
      text("data.val", "split to evaluate on, likewise", TESSERA_FIELD(data.val)),
      flag("data.allow_overlap",
           "Train although data.val holds samples of data.train; false: such a run is refused",
           TESSERA_FIELD(data.allow_overlap)),
      paths("data.mix", "further sources to train on, with the classes of data.source",
            TESSERA_FIELD(data.mix)),
      texts("data.mix_train", "their splits: one for all or one each; empty: that of data.train",
            TESSERA_FIELD(data.mix_train)),
      numbers("data.mix_weights", "of data.source and each of data.mix; empty: by size", {0, 1e12, true},
              TESSERA_FIELD(data.mix_weights)),
      choice<Order>(
          "data.order", "of the training samples; shards: some archive files at a time",
          {{"shuffle", Order::kShuffle}, {"shards", Order::kShards}, {"sequential", Order::kSequential}},
          TESSERA_FIELD(data.order.order)),
      integer("data.mixed_shards", "order = \"shards\": files that are mixed with each other", {1, 1 << 20},
              TESSERA_FIELD(data.order.mixed_shards)),
      choice<Remainder>(
          "data.remainder", "an epoch's last samples, too few for a batch; keep: a short step",
          {{"drop", Remainder::kDrop}, {"keep", Remainder::kKeep}, {"carry", Remainder::kCarry}},
          TESSERA_FIELD(data.order.remainder)),
      integer("data.repeats", "copies of each sample in a global batch, each augmented anew", {1, 1 << 10},
              TESSERA_FIELD(data.order.repeats)),
      text("data.ram_cache", "encoded training samples kept in memory, one copy a host",
           TESSERA_FIELD(data.ram_cache), {"none", "part", "full"}),
      number("data.ram_cache_gib", "ram_cache = \"part\": GiB a host, at most", {0, 1 << 20},
             TESSERA_FIELD(data.ram_cache_gib)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_data_options(std::vector<Option>& table) {
  using data::ErasingMode, data::EvalCrop, data::TrainCrop;
  const std::vector<Option> rows = {
      integer("data.workers", "decoding threads a rank; -1: what the machine has to spare", {-1, 1024},
              TESSERA_FIELD(data.workers)),
      integer("data.prefetch", "micro-batches decoded ahead", {1, 4096}, TESSERA_FIELD(data.prefetch)),
      text("data.on_error", "what a broken image does", TESSERA_FIELD(data.on_error), {"skip", "fail"}),
      number("data.error_limit", "share of broken images above which the run stops", {0, 1},
             TESSERA_FIELD(data.error_limit)),
      path("data.index_dir",
           "folder of index files ({split} is replaced), \"beside\" the data or \"none\"; \"\": the user's "
           "cache",
           TESSERA_FIELD(data.index_dir), {"beside", "none"}),
      text("data.image_key", "of the image: tfrecord's feature, wds's ending; \"\": found out",
           TESSERA_FIELD(data.image_key)),
      text("data.label_key",
           "of the label: tfrecord's feature, wds's ending or \"json:field\"; \"\": found out",
           TESSERA_FIELD(data.label_key)),
      integer("data.label_offset", "added to each label of zip, wds, tfrecord; -1 where they count from 1",
              {-1e6, 1e6}, TESSERA_FIELD(data.label_offset)),
      path("data.classes", "file of class names, one a line; \"\": classes.txt beside the data, else numbers",
           TESSERA_FIELD(data.classes)),
      choice<TrainCrop>("data.crop",
                        "for training; none: squash; random_resized: torchvision's; inception: TensorFlow's; "
                        "center: as in evaluation",
                        {{"none", TrainCrop::kNone},
                         {"random_resized", TrainCrop::kRandomResized},
                         {"inception", TrainCrop::kInception},
                         {"center", TrainCrop::kCenter},
                         {"pad", TrainCrop::kPad},
                         {"squash_random", TrainCrop::kSquashRandom}},
                        TESSERA_FIELD(data.transform.train_crop)),
      pair("data.crop_scale", "random_resized, inception: least and most share of the area", {0, 1, true},
           TESSERA_FIELD(data.transform.crop_scale_min), TESSERA_FIELD(data.transform.crop_scale_max)),
      pair("data.crop_ratio", "random_resized, inception: least and most width / height", {0, 100, true},
           TESSERA_FIELD(data.transform.crop_ratio_min), TESSERA_FIELD(data.transform.crop_ratio_max)),
      integer("data.crop_padding", "pad: pixels on each side", {0, 1024},
              TESSERA_FIELD(data.transform.crop_padding)),
      integer("data.crop_from",
              "squash_random: squashed to so many pixels a side, then a random part; 0: 8/7 of image_size",
              {0, 1 << 16}, TESSERA_FIELD(data.transform.crop_from)),
      flag("data.flip", "mirror half of the training images", TESSERA_FIELD(data.transform.flip)),
      text("data.auto_augment",
           "\"rand-m9-mstd0.5-inc1\", \"original\", \"v0\", \"3a\", \"ta_wide\", \"bv-randaug:2,15\", "
           "\"tv-randaug:2,9\"; empty: none",
           TESSERA_FIELD(data.transform.augment.policy)),
      choice<bool>(
          "data.augment_interpolation", "of rotations, shears, translations: as data.interpolation, or drawn",
          {{"same", false}, {"random", true}}, TESSERA_FIELD(data.transform.augment.random_interpolation)),
      floats("data.color_jitter",
             "[all], [brightness, contrast, saturation] or these and hue: factors of 1 - x to 1 + x; empty: "
             "none",
             {0, 1000}, TESSERA_FIELD(data.transform.augment.color_jitter)),
      number("data.erasing", "probability of random erasing", {0, 1},
             TESSERA_FIELD(data.transform.augment.erasing)),
      choice<ErasingMode>(
          "data.erasing_mode", "zeros, one random colour, or noise",
          {{"const", ErasingMode::kConst}, {"rand", ErasingMode::kRand}, {"pixel", ErasingMode::kPixel}},
          TESSERA_FIELD(data.transform.augment.erasing_mode)),
      integer("data.erasing_count", "boxes of an image, at most; they share the area", {1, 1000},
              TESSERA_FIELD(data.transform.augment.erasing_count)),
      pair("data.erasing_area", "least and most share of the image that is erased", {0, 1},
           TESSERA_FIELD(data.transform.augment.erasing_area_min),
           TESSERA_FIELD(data.transform.augment.erasing_area_max)),
      choice<EvalCrop>("data.eval_crop",
                       "Evaluation: whole image squashed, its centre, or squashed and its centre",
                       {{"squash", EvalCrop::kSquash},
                        {"center", EvalCrop::kCenter},
                        {"squash_center", EvalCrop::kSquashCenter}},
                       TESSERA_FIELD(data.transform.eval_crop)),
      number("data.eval_crop_ratio",
             "center: short side becomes image_size / this; squash_center: both sides", {0, 1, true},
             TESSERA_FIELD(data.transform.eval_crop_ratio)),
      choice<bool>("data.interpolation", "of every resize", {{"bilinear", false}, {"bicubic", true}},
                   TESSERA_FIELD(data.transform.bicubic)),
      flag("data.exif", "turn photos as their EXIF orientation says; torchvision and timm do not",
           TESSERA_FIELD(data.transform.exif)),
      flag("data.dct_scaling", "training: decode JPEGs at 1/2, 1/4 or 1/8 where the crop stays large enough",
           TESSERA_FIELD(data.transform.dct_scaling)),
      floats("data.mean", "of a channel, pixels 0..1; one number or one a channel; default: ImageNet's",
             {-1e6, 1e6}, TESSERA_FIELD(data.transform.mean)),
      floats("data.std", "of a channel, likewise", {1e-6, 1e6}, TESSERA_FIELD(data.transform.std)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

}  // namespace tessera::recipe
