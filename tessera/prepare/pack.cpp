// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/pack.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/formats/png.h"
#include "tessera/prepare/image_kind.h"
#include "tessera/prepare/in_order.h"
#include "tessera/prepare/journal.h"
#include "tessera/prepare/naming.h"

namespace tessera::prepare {
namespace {

constexpr const char* kPack = "prepare.pack";
constexpr uint64_t kMiB = uint64_t{1} << 20;

std::unique_ptr<Writer> make_writer(const std::filesystem::path& folder, const PackOptions& options) {
  switch (options.form) {
    case Form::kFolder:
      return folder_writer(folder);
    case Form::kWds:
      return wds_writer(folder, options.writer);
    case Form::kZip:
      return zip_writer(folder);
    case Form::kTfrecord:
      return tfds_writer(folder, options.writer);
  }
  TESSERA_CHECK(false, "form ", static_cast<int>(options.form));
  return nullptr;
}

PackOptions with_defaults(PackOptions options) {
  if (options.max_bytes == 0) options.max_bytes = (options.form == Form::kTfrecord ? 256 : 1024) * kMiB;
  if (options.max_samples == 0) options.max_samples = options.form == Form::kFolder ? 4096 : INT64_MAX;
  return options;
}

/// Position in the split to index in the source: Fisher and Yates, drawn from (seed, split).
std::vector<int64_t> order_of(const std::string& split, int64_t samples, std::optional<uint64_t> seed) {
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!seed) return order;
  const uint64_t key = random_key(*seed, "pack " + split);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(key, i, i)]);
  return order;
}

/// A sample that was not to be had, with the reason.
struct Attempt {
  std::optional<Block> block;
  std::string name, reason;
};

std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class SplitPacker {
 public:
  SplitPacker(const data::Source& source, const Writer& writer, std::vector<int64_t> order)
      : source_(source), writer_(writer), naming_(source), order_(std::move(order)) {}

  /// Any thread.
  Attempt make(int64_t position) const {
    const int64_t index = order_[static_cast<size_t>(position)];
    Attempt attempt;
    try {
      attempt.block = writer_.frame(sample(index));
    } catch (const UserError& error) {
      attempt.name = source_.sample_name(index);
      attempt.reason = error.what();
    }
    return attempt;
  }

  /// Of all names and labels: another source of the same size is another one.
  std::string fingerprint() const {
    Checksum sum;
    for (int64_t i = 0; i < source_.size(); ++i) {
      const std::string line = concat(source_.sample_name(i), '\t', source_.label(i), '\n');
      sum.update(std::as_bytes(std::span(line)));
    }
    return concat(source_.size(), " samples, ", sum.hex());
  }

 private:
  Sample sample(int64_t index) const {
    data::Stored stored = source_.load(index);
    if (source_.label(index) < 0)
      user_error({.where = kPack, .problem = concat(escape(source_.sample_name(index)), " has no label")});
    Sample sample;
    if (stored.file.empty() && !stored.pixels.pixels.empty()) {
      const data::Image& image = stored.pixels;
      const auto png = formats::encode_png(image.pixels.data(), image.width, image.height, image.channels);
      sample.file.assign(png.begin(), png.end());
    } else {
      sample.file = std::move(stored.file);
    }
    const char* ending = image_ending(as_bytes(sample.file));
    if (ending == nullptr) {
      user_error({.where = kPack,
                  .problem = concat(escape(source_.sample_name(index)), " (", sample.file.size(),
                                    " bytes) is neither JPEG nor PNG")});
    }
    sample.ending = ending;
    sample.path = naming_.path(index, ending);
    sample.key = naming_.key(index);
    sample.label = source_.label(index);
    return sample;
  }

  const data::Source& source_;
  const Writer& writer_;
  Naming naming_;
  std::vector<int64_t> order_;
};

class Packer {
 public:
  Packer(PackOptions options, Writer& writer, Journal& journal,
         const std::function<void(const PackProgress&)>& progress)
      : options_(std::move(options)), writer_(writer), journal_(journal), progress_(progress) {}

  Split pack(const std::string& name, const data::Source& source, const SplitPacker& samples) {
    split_ = {name, source.classes(), journal_.parts(name)};
    writer_.check(split_, journal_.split_done(name));
    if (journal_.split_done(name)) return split_;
    const int64_t begin = split_.parts.empty() ? 0 : split_.parts.back().end;
    part_ = {};
    writer_.open(split_);
    InOrder<Attempt>::run(
        begin, source.size(), options_.workers, [&](int64_t position) { return samples.make(position); },
        [&](int64_t position, Attempt attempt) {
          take(position, std::move(attempt));
          if (progress_) progress_({name, position + 1, source.size(), bytes_});
        });
    if (part_.end > 0) seal();
    writer_.close();
    journal_.end_split(name);
    return split_;
  }

 private:
  void take(int64_t position, Attempt attempt) {
    if (!attempt.block) {
      if (!options_.skip_broken) {
        throw UserError(attempt.reason + "; --skip-broken leaves such samples out");
      }
      part_.left_out.push_back(attempt.name);
    } else {
      const Block& block = *attempt.block;
      const bool full = part_.samples >= options_.max_samples ||
                        (part_.samples > 0 && part_.bytes + block.bytes.size() > options_.max_bytes);
      if (full) seal();
      writer_.append(block);
      part_.samples += 1;
      part_.jpegs += block.sample.ending == "jpg" ? 1 : 0;
      part_.bytes += block.bytes.size();
      bytes_ += block.bytes.size();
    }
    part_.end = position + 1;
  }

  void seal() {
    writer_.seal();
    part_.split = split_.name;
    journal_.add(part_);
    split_.parts.push_back(std::exchange(part_, {}));
  }

  PackOptions options_;
  Writer& writer_;
  Journal& journal_;
  const std::function<void(const PackProgress&)>& progress_;
  Split split_;
  SealedPart part_;  // being written
  uint64_t bytes_ = 0;
};

/// All that decides the output.
std::map<std::string, std::string> command_of(const std::string& origin, const PackOptions& options) {
  return {{"source", origin},
          {"--to", form_name(options.form)},
          {"--splits", join(options.splits, ",")},
          {"--max-bytes", std::to_string(options.max_bytes)},
          {"--max-samples", std::to_string(options.max_samples)},
          {"--shuffle", options.shuffle ? std::to_string(*options.shuffle) : ""},
          {"--skip-broken", options.skip_broken ? "yes" : "no"},
          {"--name", options.writer.name},
          {"--data-version", options.writer.version},
          {"--dali-index", options.writer.dali_index ? "yes" : "no"},
          {"--index-dir", options.writer.index_dir.string()}};
}

/// Before anything is made: it becomes part of names of files.
void check_name(const std::string& name) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (name.find_first_not_of(kPlain) == std::string::npos && !name.starts_with('.')) return;
  user_error({.where = kPack,
              .problem = concat("--name is '", escape(name), "'"),
              .expected = "letters, digits and . _ -, not beginning with a dot"});
}

void check_classes(const std::vector<Split>& splits, const Split& split) {
  if (splits.empty() || splits[0].classes == split.classes) return;
  user_error(
      {.where = kPack,
       .problem = concat("split ", split.name, " has ", split.classes.size(),
                         " classes that differ from the ", splits[0].classes.size(), " of ", splits[0].name),
       .expected = "the same classes in every split"});
}

}  // namespace

PackResult pack(const OpenSplit& open, const std::string& origin, const std::filesystem::path& folder,
                const PackOptions& given, const std::function<void(const PackProgress&)>& progress) {
  const PackOptions options = with_defaults(given);
  check_name(options.writer.name);
  const auto writer = make_writer(folder, options);
  std::vector<std::unique_ptr<data::Source>> sources;
  std::vector<std::unique_ptr<SplitPacker>> packers;
  auto command = command_of(origin, options);
  PackResult result;
  for (const auto& split : options.splits) {
    sources.push_back(open(split));
    const data::Source& source = *sources.back();
    check_classes(result.splits, {split, source.classes(), {}});
    result.splits.push_back({split, source.classes(), {}});
    packers.push_back(
        std::make_unique<SplitPacker>(source, *writer, order_of(split, source.size(), options.shuffle)));
    command["samples of " + split] = packers.back()->fingerprint();
  }
  Journal journal(folder, command);
  result.was_done = journal.done();
  Packer packer(options, *writer, journal, progress);
  for (size_t i = 0; i < options.splits.size(); ++i) {
    for (const SealedPart& part : journal.parts(options.splits[i])) result.resumed_from += part.samples;
    result.splits[i] = packer.pack(options.splits[i], *sources[i], *packers[i]);
  }
  if (result.was_done) return result;
  writer->finish(result.splits);
  journal.end();
  return result;
}

}  // namespace tessera::prepare
