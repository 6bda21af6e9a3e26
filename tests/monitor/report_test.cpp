// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/report.h"

#include <gtest/gtest.h>
#include <png.h>

#include <cmath>
#include <regex>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/png.h"
#include "tests/monitor/not_finite.h"

namespace tessera::monitor {
namespace {

PredictionSample make_sample(int64_t width, int64_t height, int64_t channels) {
  PredictionSample sample{width, height, channels, {}, "cat", "cat", 0.75};
  for (int64_t i = 0; i < width * height * channels; ++i) {
    sample.pixels.push_back(static_cast<uint8_t>((i * 2654435761U) >> 7));
  }
  return sample;
}

ReportInput make_input(int64_t steps) {
  ReportInput input;
  input.title = "tiny run";
  for (int64_t i = 1; i <= steps; ++i) {
    const double t = static_cast<double>(i);
    input.steps.push_back({i, t / 100, 2.0 / (1 + t / 50), 1e-3, 1.5, 5000 + std::fmod(t, 13), 1.9, 0.0125,
                           0.05, 8e8, t * 0.1});
  }
  input.evals = {{steps / 2, 1, 81.25, 99.5, 0.61, 10000, 1.5}, {steps, 2, 87.65, 99.7, 0.4321, 10000, 1.5}};
  input.classes = {"cat", "dog <b>", "bird"};
  input.confusion = {{90, 8, 2}, {5, 95, 0}, {0, 1, 1299}};
  input.samples = {make_sample(28, 28, 1), make_sample(5, 9, 3)};
  input.samples[1].prediction = "dog <b>";
  input.facts = {{"parameters", "1,234,567"}, {"note", "a < b & \"c\""}};
  input.recipe_toml = "[model]\nname = \"</pre><script>alert(1)</script>\"\n";
  return input;
}

std::string page_of(const ReportInput& input) {
  const TemporaryFolder folder("tessera-report");
  write_report(folder.path() / "report.html", input);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  return read_file(folder.path() / "report.html");
}

size_t occurrences(const std::string& page, const std::string& text) {
  size_t found = 0;
  for (size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++found;
  return found;
}

void expect_well_formed(const std::string& page) {
  for (const char* tag : {"section", "figure", "div", "span", "table", "tr", "td", "th", "dl", "svg",
                          "script", "p", "details", "main", "header", "h2", "h3"}) {
    const std::regex open(std::string("<") + tag + "[ >]");
    const auto opened = std::distance(std::sregex_iterator(page.begin(), page.end(), open), {});
    EXPECT_EQ(static_cast<size_t>(opened), occurrences(page, std::string("</") + tag + ">")) << tag;
  }
}

TEST(Report, ShowsEveryPart) {
  const std::string page = page_of(make_input(500));
  for (const char* text : {"<title>tiny run",
                           "Top-1 accuracy",
                           "87.65",
                           "0.4321",
                           "Loss",
                           "Accuracy",
                           "Throughput",
                           "Learning rate",
                           "Gradient norm",
                           "Waiting",
                           "Memory <small>MiB resident, one rank",
                           "Compute <small>TFLOP/s",
                           "Confusion matrix",
                           "Predictions",
                           "1,299",
                           "1,234,567",
                           "<details",
                           "1 of these 2 test images are right, drawn evenly from all 10,000 (87.7 % right)",
                           "1,484 of 1,500 test images",
                           "is cat",
                           "prefers-color-scheme:dark",
                           "max-width:640px",
                           "width=device-width",
                           "8.0 %",
                           "aria-label=\"Loss over 500 steps"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(occurrences(page, "<figure class=\"chart\">"), 8U);
  EXPECT_EQ(occurrences(page, "data:image/png;base64,"), 2U);
  expect_well_formed(page);
}

TEST(Report, ShareOfPeakAndGigabytesWhereKnown) {
  ReportInput input = make_input(100);
  for (auto& row : input.steps) {
    row.peak_share = 0.42;
    row.memory_bytes = 3.5 * (1 << 30);
  }
  const std::string page = page_of(input);
  EXPECT_NE(page.find("Share of peak <small>% of the measured rate"), std::string::npos);
  EXPECT_EQ(page.find("Compute <small>"), std::string::npos);
  EXPECT_NE(page.find("Memory <small>GiB resident, one rank"), std::string::npos);
  EXPECT_NE(page.find("\"name\":\"resident\",\"colour\":\"green\",\"x\":[1,2,"), std::string::npos);
  EXPECT_NE(page.find("\"y\":[3.5,3.5,"), std::string::npos);
}

TEST(Report, SkippedStepsAndTheEnvironmentWhereThereAreAny) {
  ReportInput input = make_input(100);
  const std::string without = page_of(input);
  EXPECT_EQ(without.find("Skipped steps"), std::string::npos);
  EXPECT_EQ(without.find("id=\"environment\""), std::string::npos);
  input.skipped_steps = 1234;
  input.environment = {{"nccl", "none"}, {"NCCL_DEBUG", "<INFO>"}};
  const std::string page = page_of(input);
  EXPECT_NE(page.find("Skipped steps</span><span class=\"value\">1,234<"), std::string::npos);
  EXPECT_NE(page.find("<dt>nccl</dt><dd>none</dd>"), std::string::npos);
  EXPECT_NE(page.find("<dt>NCCL_DEBUG</dt><dd>&lt;INFO&gt;</dd>"), std::string::npos);
  expect_well_formed(page);
}

TEST(Report, TheAverageOfTheWeightsIsDrawnWhereThereIsOne) {
  ReportInput input = make_input(100);
  EXPECT_EQ(page_of(input).find("averaged weights"), std::string::npos);
  input.evals[1].top1_ema = 91.5;
  input.evals[1].loss_ema = 0.25;
  const std::string page = page_of(input);
  EXPECT_NE(page.find("\"name\":\"top-1, averaged weights\",\"colour\":\"violet\",\"x\":[50,100],"
                      "\"y\":[null,91.5]"),
            std::string::npos);
  EXPECT_NE(page.find("validation, averaged weights"), std::string::npos);
}

/// `steps` rows of two blocks and a head, as run.statistics_every gives them.
std::vector<StepTensors> make_statistics(int64_t steps) {
  std::vector<StepTensors> rows;
  for (int64_t step = 10; step <= 10 * steps; step += 10) {
    const double t = static_cast<double>(step);
    rows.push_back({step,
                    {{"activations", "stem", 0, 1, 3, 0},
                     {"activations", "blocks.0", 0, 1 + t / 50, 5, 0},
                     {"activations", "head", 0, 0.01, 1, 0},
                     {"gradients", "blocks.0.attn.qkv.weight", 0, 0.3, 1, 0},
                     {"gradients", "blocks.0.norm1.weight", 0, 0.4, 1, step == 20 ? 7 : 0},
                     {"gradients", "head.weight", 0, 1e-12 * t, 1, 0}}});
  }
  return rows;
}

TEST(Report, ShowsWhatTheUnitsNumbersWere) {
  ReportInput input = make_input(100);
  EXPECT_EQ(page_of(input).find("id=\"units\""), std::string::npos);
  input.statistics = make_statistics(5);
  std::string page = page_of(input);
  expect_well_formed(page);
  EXPECT_EQ(occurrences(page, "<figure class=\"units\">"), 2U);
  EXPECT_EQ(occurrences(page, "<rect x="), 5U * (3 + 2));  // a unit's tensors are one row
  EXPECT_EQ(occurrences(page, "class=\"bad\"/>"), 1U);     // where 7 numbers were not finite
  EXPECT_EQ(occurrences(page, "</i>not finite"), 1U);
  for (const char* text : {"<title>blocks.0: 1.2 to 2</title>", "<title>stem: 1 to 1</title>",
                           "<title>blocks.0: 0.354 to 0.354</title>",  // sqrt((0.09 + 0.16) / 2)
                           "aria-label=\"Gradients of 2 units\"", "step 10</span>", ">50</span>"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  input.statistics = make_statistics(1000);
  page = page_of(input);
  EXPECT_EQ(occurrences(page, "<rect x="), 48U * (3 + 2)) << "many steps share columns";
  EXPECT_EQ(occurrences(page, "class=\"bad\"/>"), 1U) << "and what was not finite stays";
  input.statistics = make_statistics(1);
  expect_well_formed(page_of(input));
  for (auto& tensor : input.statistics[0].tensors) tensor.rms = kNan;
  page = page_of(input);
  EXPECT_EQ(page.find(",nan"), std::string::npos);
  expect_well_formed(page);
}

TEST(Report, EscapesAllText) {
  ReportInput input = make_input(50);
  input.title = "<img src=x onerror=alert(1)>";
  input.samples[0].truth = "\"><script>";
  const std::string page = page_of(input);
  EXPECT_EQ(page.find("<img src=x"), std::string::npos);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(page.find("\"><script>"), std::string::npos);
  EXPECT_NE(page.find("&lt;img src=x onerror=alert(1)&gt;"), std::string::npos);
  EXPECT_NE(page.find("dog &lt;b&gt;"), std::string::npos);
  EXPECT_NE(page.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  expect_well_formed(page);
}

TEST(Report, NeedsNothingFromOutside) {
  const std::string page = page_of(make_input(50));
  for (const char* text : {"http:", "https:", "//cdn", "@import", "<link", "url(", "src=\"/", "fetch("}) {
    EXPECT_EQ(page.find(text), std::string::npos) << text;
  }
}

TEST(Report, SurvivesEmptyInput) {
  const std::string page = page_of({});
  EXPECT_NE(page.find("Untitled run"), std::string::npos);
  EXPECT_NE(page.find("No step was logged"), std::string::npos);
  expect_well_formed(page);
  for (int part = 0; part < 5; ++part) {
    ReportInput input = make_input(30);
    if (part == 0) input.evals.clear();
    if (part == 1) input.samples.clear();
    if (part == 2) input.confusion.clear();
    if (part == 3) input.steps.clear();
    if (part == 4) input.classes.clear();
    expect_well_formed(page_of(input));
  }
}

TEST(Report, SurvivesOnePoint) {
  ReportInput input = make_input(1);
  input.evals.erase(input.evals.begin());
  const std::string page = page_of(input);
  EXPECT_EQ(occurrences(page, "class=\"dots blue\""),
            5U);  // loss, throughput, compute, gradient norm, waiting
  EXPECT_EQ(page.find("nan"), std::string::npos);
  expect_well_formed(page);
}

TEST(Report, SaysWhereTheLossWasNotFinite) {
  ReportInput input = make_input(100);
  for (const size_t i : {41U, 42U, 99U}) input.steps[i].loss = kNan;
  input.steps[50].loss = kInfinity;
  const std::string page = page_of(input);
  EXPECT_NE(page.find("Not a finite number in 4 of 100 rows, first at step 42."), std::string::npos);
  EXPECT_NE(page.find("training nan"), std::string::npos);
  for (const char* text : {"Mnan", "Lnan", "Linf", ",nan", ",inf"}) {
    EXPECT_EQ(page.find(text), std::string::npos) << text;
  }
  for (auto& row : input.steps) row = {row.step, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan};
  for (auto& row : input.evals) row = {row.step, kNan, kNan, kNan, kNan, 0, kNan};
  expect_well_formed(page_of(input));
}

TEST(Report, CutsSpikesOffAndSaysSo) {
  ReportInput input = make_input(300);
  input.steps[150].loss = 1e6;
  EXPECT_NE(page_of(input).find("are cut off; the largest is 1e+06."), std::string::npos);
}

TEST(Report, StaysSmallWithManyPointsAndLargeImages) {
  ReportInput input = make_input(100000);
  input.samples.clear();
  for (int i = 0; i < 200; ++i) input.samples.push_back(make_sample(224, 200, 3));
  const std::string page = page_of(input);
  EXPECT_LT(page.size(), 2000000U);
  EXPECT_GE(occurrences(page, "data:image/png;base64,"), 16U);
  expect_well_formed(page);
}

TEST(Report, ManyClassesBecomePairs) {
  ReportInput input = make_input(50);
  input.classes.clear();
  input.confusion.assign(41, std::vector<int64_t>(41, 0));
  for (size_t i = 0; i < 41; ++i) {
    input.classes.push_back("kind " + std::to_string(i));
    input.confusion[i][i] = 50;
  }
  input.confusion[7][9] = 33;
  std::string page = page_of(input);
  EXPECT_NE(page.find("Most confused classes"), std::string::npos);
  EXPECT_NE(page.find("<td>kind 7</td><td>kind 9</td><td class=\"n\">33</td>"), std::string::npos);
  EXPECT_EQ(page.find("class=\"heat"), std::string::npos);
  expect_well_formed(page);
  input.confusion[7][9] = 0;
  EXPECT_NE(page_of(input).find("No image was taken for another class."), std::string::npos);
}

TEST(Report, RaggedConfusionAndMissingNames) {
  ReportInput input = make_input(10);
  input.classes = {"only"};
  input.confusion = {{1, 2, 3}, {4}};
  const std::string page = page_of(input);
  EXPECT_NE(page.find("class 2"), std::string::npos);
  EXPECT_NE(page.find("1 of 10 test images right"), std::string::npos);
  expect_well_formed(page);
}

TEST(Report, FolderThatIsNotThereIsAUserError) {
  try {
    write_report("/nonexistent/report.html", make_input(2));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("[file.create] cannot create /nonexistent/report.html"),
              std::string::npos)
        << error.what();
  }
}

TEST(Png, ReadsBackAsItWas) {
  for (const int64_t channels : {1, 3, 4}) {
    for (const auto& [width, height] : {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {224, 1}, {64, 65}}) {
      const PredictionSample sample = make_sample(width, height, channels);
      const auto bytes = formats::encode_png(sample.pixels.data(), width, height, channels);
      png_image image{};
      image.version = PNG_IMAGE_VERSION;
      ASSERT_NE(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()), 0) << image.message;
      EXPECT_EQ(image.width, static_cast<png_uint_32>(width));
      EXPECT_EQ(image.height, static_cast<png_uint_32>(height));
      EXPECT_EQ(PNG_IMAGE_PIXEL_CHANNELS(image.format), static_cast<png_uint_32>(channels));
      std::vector<uint8_t> pixels(sample.pixels.size());
      ASSERT_NE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr), 0) << image.message;
      EXPECT_EQ(pixels, sample.pixels);
    }
  }
}

TEST(Png, NoPixelsAreOurFault) {
  const uint8_t pixel = 0;
  EXPECT_THROW(formats::encode_png(&pixel, 0, 1, 1), InternalError);
  EXPECT_THROW(formats::encode_png(&pixel, 1, 1, 5), InternalError);
}

}  // namespace
}  // namespace tessera::monitor
