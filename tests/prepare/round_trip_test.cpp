// SPDX-License-Identifier: Apache-2.0
// What pack writes is what data::open_source reads.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "tessera/prepare/pack.h"
#include "tests/prepare/memory_source.h"

namespace tessera::prepare {
namespace {

using Samples = std::multiset<std::tuple<int64_t, std::string>>;

Samples samples_of(const data::Source& source) {
  Samples samples;
  for (int64_t i = 0; i < source.size(); ++i) samples.emplace(source.label(i), source.load(i).file);
  return samples;
}

class RoundTrip : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(All, RoundTrip,
                         ::testing::Values(Form::kFolder, Form::kWds, Form::kZip, Form::kTfrecord),
                         [](const auto& info) { return form_name(info.param); });

TEST_P(RoundTrip, TesseraReadsBackEverySampleAndClass) {
  const TemporaryFolder folder("tessera-pack"), indexes("tessera-index");
  PackOptions options;
  options.form = GetParam();
  options.shuffle = 1;
  options.workers = 2;
  options.max_bytes = 40'000;
  options.writer.name = "small";
  options.writer.dali_index = true;
  options.writer.index_dir = folder.path() / "dali";
  pack(
      [](const std::string& split) {
        return std::make_unique<MemorySource>(small_source(split, split == "train" ? 60 : 7));
      },
      "small", folder.path(), options);
  const std::string spec = concat(form_name(GetParam()), ":", folder.path().string());
  for (const std::string split : {"train", "val"}) {
    for (const std::string& index_dir :
         {indexes.path().string(), (folder.path() / "dali/{split}").string()}) {
      const auto read = data::open_source(spec, split, {.index_dir = index_dir});
      EXPECT_EQ(read->classes(), (std::vector<std::string>{"cat", "dog", "eel"}));
      EXPECT_EQ(samples_of(*read), samples_of(small_source(split, split == "train" ? 60 : 7))) << split;
    }
  }
}

// From form to form to form: names and bytes survive.
TEST(RoundTrips, ThroughAllFormsAndBackToTheSameFolder) {
  const TemporaryFolder start("tessera-pack"), zip("tessera-pack"), wds("tessera-pack"),
      records("tessera-pack"), end("tessera-pack");
  const auto step = [](const std::string& from, Form to, const TemporaryFolder& folder) {
    PackOptions options;
    options.form = to;
    options.writer.name = "small";
    pack([&](const std::string& split) { return data::open_source(from, split, {.index_dir = "none"}); },
         from, folder.path(), options);
    return concat(form_name(to), ":", folder.path().string());
  };
  PackOptions options;
  options.form = Form::kFolder;
  pack([](const std::string& split) { return std::make_unique<MemorySource>(small_source(split, 9)); },
       "small", start.path(), options);
  std::string spec = concat("folder:", start.path().string());
  spec = step(spec, Form::kZip, zip);
  spec = step(spec, Form::kWds, wds);
  spec = step(spec, Form::kTfrecord, records);
  step(spec, Form::kFolder, end);
  Samples before, after;
  for (const auto& [name, content] : files_of(start.path())) before.emplace(0, content);
  for (const auto& [name, content] : files_of(end.path())) after.emplace(0, content);
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace tessera::prepare
