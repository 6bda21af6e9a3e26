// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/event_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/tfrecord.h"
#include "tessera/monitor/monitor.h"

namespace tessera::formats {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(TfRecord, KnownChecksums) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);            // the polynomial's check value
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAU);  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xFF'))), 0x62A8AB43U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(TfRecord, ReadsBackAnyLength) {
  const TemporaryFolder folder("tessera-events");
  const auto path = folder.path() / "records";
  std::string all;
  for (const size_t length : {0U, 1U, 7U, 1000U, 70000U}) all += tfrecord(std::string(length, 'x'));
  write_file_atomic(path, all);
  TfRecordReader reader(path);
  for (const size_t length : {0U, 1U, 7U, 1000U, 70000U}) EXPECT_EQ(reader.next(), std::string(length, 'x'));
  EXPECT_EQ(reader.next(), std::nullopt);
}

TEST(TfRecord, EveryCutAndEveryFlippedByteIsFound) {
  const TemporaryFolder folder("tessera-events");
  const auto path = folder.path() / "records";
  const std::string whole = tfrecord("hello");
  const auto message = [&](const std::string& content) -> std::string {
    write_file_atomic(path, content);
    try {
      TfRecordReader(path).next();
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  for (size_t length = 1; length < whole.size(); ++length)
    EXPECT_NE(message(whole.substr(0, length)), "") << length;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    EXPECT_NE(message(flipped), "") << i;
  }
  EXPECT_EQ(message(whole.substr(0, 3)),
            concat("[formats.tfrecord] a record has 3 bytes: the file is cut off or damaged (offset 0 of ",
                   path.string(), "): expected at least 16 bytes"));
  EXPECT_EQ(message(whole.substr(0, 20)),
            concat("[formats.tfrecord] a record has 4 bytes: the file is cut off or damaged (offset 0 of ",
                   path.string(), "): expected 5 bytes"));
}

TEST(EventFile, ForeignRecordIsNamed) {
  const TemporaryFolder folder("tessera-events");
  const auto path = folder.path() / "records";
  write_file_atomic(path, event_file_header(1) + tfrecord("\xFF\xFF\xFF"));
  try {
    read_event_file(path);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              concat("[formats.event_file] ", path.string(),
                     " is not a TensorBoard event file: record 1 is not a protobuf event"));
  }
}

TEST(EventFile, NamesAreNewAndFound) {
  const TemporaryFolder folder("tessera-events");
  const auto first = new_event_file_path(folder.path(), 1700000000.5);
  EXPECT_EQ(first.filename().string().rfind("events.out.tfevents.1700000000.", 0), 0U);
  write_file_atomic(first, "");
  EXPECT_NE(new_event_file_path(folder.path(), 1700000000.5), first);
}

// A run of 10 steps, stopped at 8 and resumed at 5, with evaluations at 5 and 10.
void write_run(const fs::path& folder) {
  Log log(false);
  monitor::MonitorOptions options;
  options.run_dir = folder;
  options.total_steps = 10;
  options.log_every = 1;
  const auto train = [](monitor::Monitor& monitor, int64_t first, int64_t last, double scale) {
    for (int64_t step = first; step <= last; ++step) {
      monitor::StepMetrics metrics;
      metrics.step = step;
      metrics.loss = scale * static_cast<double>(step);
      monitor.step(metrics);
      if (step % 5 == 0) monitor.eval({step, 1, 80.5, 99, 0.25, 100, 1, 81.5, 0.125});
    }
  };
  {
    monitor::Monitor monitor(options, log);
    train(monitor, 1, 8, 1);
  }
  options.resume = true;
  options.resume_step = 5;
  monitor::Monitor monitor(options, log);
  train(monitor, 6, 10, 100);
}

TEST(EventFile, MonitorWritesWhatTheReaderFinds) {
  const TemporaryFolder folder("tessera-events");
  write_run(folder.path());
  std::vector<fs::path> files(fs::directory_iterator(folder.path() / "tensorboard"),
                              fs::directory_iterator{});
  std::sort(files.begin(), files.end());
  ASSERT_EQ(files.size(), 2U);
  const auto first = read_event_file(files[0]), second = read_event_file(files[1]);
  ASSERT_EQ(first.size(), 2U + 8 + 1);
  EXPECT_EQ(first[0].file_version, "brain.Event:2");
  EXPECT_TRUE(first[1].session_start);
  EXPECT_EQ(first[2].step, 1);
  EXPECT_GT(first[2].wall_time, 1.7e9);
  ASSERT_EQ(first[2].scalars.size(), 9U);
  EXPECT_EQ(first[2].scalars[0], (std::pair<std::string, double>{"train/loss", 1.0}));
  EXPECT_EQ(first[7].scalars[0], (std::pair<std::string, double>{"validation/top1", 80.5}));
  ASSERT_EQ(first[7].scalars.size(), 5U);
  EXPECT_EQ(first[7].scalars[3], (std::pair<std::string, double>{"validation/top1_ema", 81.5}));
  EXPECT_EQ(first[7].scalars[4], (std::pair<std::string, double>{"validation/loss_ema", 0.125}));
  ASSERT_EQ(second.size(), 2U + 5 + 1);
  EXPECT_TRUE(second[1].session_start);
  EXPECT_EQ(second[1].step, 6);
  EXPECT_EQ(second[2].scalars[0].second, 600.0);
}

TEST(EventFile, TensorBoardReadsTheResumedRun) {
  const char* python = std::getenv("TESSERA_PEERS_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "TESSERA_PEERS_PYTHON is not set: no Python with tensorboard to read the events with";
  }
  const TemporaryFolder folder("tessera-events");
  write_run(folder.path());
  const auto output = folder.path() / "scalars.txt";
  const std::string command =
      concat("'", python, "' '", TESSERA_SOURCE_DIR, "/tests/monitor/read_events.py' '",
             (folder.path() / "tensorboard").string(), "' > '", output.string(), "'");
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << python << " has no tensorboard";
  ASSERT_EQ(status, 0) << command;
  const std::string text = read_file(output);
  for (const char* line :
       {"train/loss 5 5\n", "train/loss 6 600\n", "train/loss 10 1000\n", "validation/top1 5 80.5\n",
        "validation/top1 10 80.5\n", "validation/loss 10 0.25\n", "validation/top1_ema 5 81.5\n",
        "validation/loss_ema 10 0.125\n", "memory/resident_bytes 10 0\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  }
  for (const char* line : {"train/loss 6 6\n", "train/loss 8 8\n"}) {
    EXPECT_EQ(text.find(line), std::string::npos) << line << "is of the abandoned steps, in\n" << text;
  }
}

}  // namespace
}  // namespace tessera::formats
