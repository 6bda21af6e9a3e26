// SPDX-License-Identifier: Apache-2.0
// The line of progress, on paper and on a terminal.
#include "tessera/monitor/bar.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <thread>

#include "tessera/base/file.h"
#include "tessera/monitor/monitor.h"

namespace tessera::monitor {
namespace {

constexpr double kUnknown = Progress::kUnknown;

Progress example() {
  Progress p;
  p.step = 1170;
  p.total_steps = 2340;
  p.epoch = 5;
  p.loss = 0.41234;
  p.learning_rate = 5e-4;
  p.top1 = 86.119;
  p.images_per_second = 5210.4;
  p.tflops = 1.8712;
  p.peak_share = 0.543;
  p.data_wait = 0.012;
  p.comm_wait = 0.06;
  p.memory_bytes = 812.0 * 1024 * 1024;
  p.seconds_left = 97;
  return p;
}

size_t columns(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1U : 0U;
  return count;
}

TEST(BarLine, ShowsAllWhereThereIsRoom) {
  EXPECT_EQ(bar_line(example(), 180, false),
            "epoch 5.00  ###############---------------  1,170/2,340  loss 0.4123  top-1 86.12 %  5,210 "
            "img/s  1.87 TFLOP/s  54 % of "
            "peak  data 1 %  comm 6 %  812.00 MiB  1:37 left");
}

TEST(BarLine, APipelineHasABubble) {
  Progress p = example();
  p.bubble = 0.124;
  EXPECT_NE(bar_line(p, 180, false).find("comm 6 %  bubble 12 %  812.00 MiB"), std::string::npos);
  EXPECT_EQ(plain_line(example()).find("bubble"), std::string::npos);
}

TEST(BarLine, FitsAnyWidth) {
  Progress p = example();
  for (const bool unicode : {false, true}) {
    for (int width = 0; width < 250; ++width) {
      EXPECT_LE(columns(bar_line(p, width, unicode)), static_cast<size_t>(width));
    }
  }
  const std::string narrow = bar_line(p, 79, false);
  for (const char* text : {"1,170/2,340", "loss 0.4123", "top-1 86.12 %", "1:37 left", "####"}) {
    EXPECT_NE(narrow.find(text), std::string::npos) << narrow;
  }
  EXPECT_EQ(narrow.find("MiB"), std::string::npos) << narrow;
  p.status = "evaluating\n3/79 \x1b[31mäöü";
  const std::string line = bar_line(p, 60, true);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_EQ(line.rfind("evaluating 3/79 ", 0), 0U) << line;
}

TEST(BarLine, UnknownNumbersAreLeftOut) {
  Progress p;
  p.total_steps = 100;
  EXPECT_EQ(bar_line(p, 40, false), "starting  " + std::string(23, '-') + "  0/100");
  p.step = 3;
  EXPECT_NE(bar_line(p, 60, false).find("loss nan"), std::string::npos);
  p.loss = -p.loss;  // a NaN with a sign, as processors compute it
  EXPECT_NE(bar_line(p, 60, false).find("loss nan"), std::string::npos);
  p.total_steps = 0;
  EXPECT_NE(bar_line(p, 60, true), "");
}

TEST(BarLine, PlainLineHasAll) {
  EXPECT_EQ(plain_line(example()),
            "step 1,170/2,340  epoch 5.00  loss 0.4123  lr 5.00e-04  top-1 86.12 %  5,210 img/s  1.87 "
            "TFLOP/s  54 % of peak  data 1 %"
            "  comm 6 %  812.00 MiB  1:37 left");
  Progress p = example();
  for (const auto& [tflops, text] : {std::pair{0.00012345, "  0.000123 TFLOP/s"},
                                     {25.04, "  25 TFLOP/s"},
                                     {999.4, "  999 TFLOP/s"},
                                     {12345.6, "  12,346 TFLOP/s"}}) {
    p.tflops = tflops;
    EXPECT_NE(plain_line(p).find(text), std::string::npos) << plain_line(p);
  }
  p = example();
  p.device_bytes = 12.3 * (1 << 30);
  p.device_peak_bytes = 14.1 * (1 << 30);
  const std::string on_gpu = plain_line(p);
  EXPECT_NE(on_gpu.find("  812.00 MiB  GPU 12.30 GiB (peak 14.10 GiB)  1:37 left"), std::string::npos)
      << on_gpu;
  EXPECT_EQ(device_memory_text(kUnknown, kUnknown), "");
  EXPECT_EQ(evaluation_line({468, 2, 83.214, 99.02, 0.45123, 10000, 1.23}),
            "evaluation at step 468 (epoch 2.00): top-1 83.21 %, top-5 99.02 %, loss 0.4512; 10,000 images "
            "in 1.2 s");
  EXPECT_EQ(evaluation_line({468, 2, 83.214, 99.02, 0.45123, 10000, 1.23, 84.5, 0.4}),
            "evaluation at step 468 (epoch 2.00): top-1 83.21 %, top-5 99.02 %, loss 0.4512; ema top-1 84.50 "
            "%, loss 0.4000; 10,000 images in 1.2 s");
}

TEST(Pace, FollowsTheLastMinutes) {
  Pace pace;
  EXPECT_TRUE(std::isnan(pace.seconds_per_step()));
  pace.add(100, 1000);  // a resumed run starts anywhere
  EXPECT_TRUE(std::isnan(pace.seconds_per_step()));
  for (int i = 1; i <= 600; ++i) pace.add(100 + i, 1000 + 0.5 * i);
  EXPECT_NEAR(pace.seconds_per_step(), 0.5, 1e-9);
  for (int i = 1; i <= 200; ++i) pace.add(700 + i, 1300 + 2.0 * i);
  EXPECT_NEAR(pace.seconds_per_step(), 2.0, 0.05);
  pace.add(1, 0);
  EXPECT_TRUE(std::isnan(pace.seconds_per_step()));
}

// A terminal whose other end the test holds.
struct Terminal {
  explicit Terminal(unsigned short width) {
    winsize size{};
    size.ws_col = width;
    size.ws_row = 24;
    EXPECT_EQ(::openpty(&outside, &inside, nullptr, nullptr, &size), 0);
  }
  ~Terminal() {
    hang_up();
    if (inside >= 0) ::close(inside);
  }
  void hang_up() {
    if (outside >= 0) ::close(outside);
    outside = -1;
  }
  std::string take(int wait_ms) const {
    std::string text;
    pollfd state{outside, POLLIN, 0};
    char buffer[4096];
    while (::poll(&state, 1, wait_ms) > 0 && (state.revents & POLLIN) != 0) {
      const ssize_t count = ::read(outside, buffer, sizeof buffer);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  int outside = -1, inside = -1;
};

size_t drawings(const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find("\r\x1b[K"); at != std::string::npos; at = text.find("\r\x1b[K", at + 1))
    ++count;
  return count;
}

TEST(Bar, RedrawsTenTimesASecondAtMost) {
  const Terminal terminal(70);
  Bar bar(terminal.inside);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(450);
  while (std::chrono::steady_clock::now() < end) bar.draw(example(), false);
  const std::string text = terminal.take(50);
  EXPECT_GE(drawings(text), 2U);
  EXPECT_LE(drawings(text), 5U);
  EXPECT_LE(columns(text.substr(4, text.find('\r', 1) - 4)), 69U);
  bar.clear();
  EXPECT_EQ(terminal.take(50), "\r\x1b[K");
  bar.clear();
  EXPECT_EQ(terminal.take(50), "");
}

TEST(Bar, StoppedTerminalDoesNotStopTheRun) {
  const Terminal terminal(70);
  Bar bar(terminal.inside);
  for (int i = 0; i < 20000; ++i) bar.draw(example(), true);  // nobody reads: the buffer is long full
  EXPECT_GT(drawings(terminal.take(50)), 5U);
}

TEST(Bar, LostTerminalIsLeftAlone) {
  Terminal terminal(70);
  Bar bar(terminal.inside);
  bar.draw(example(), true);
  terminal.hang_up();
  for (int i = 0; i < 10; ++i) bar.draw(example(), true);
  bar.clear();
}

// Runs `body` in a child whose standard output is `output`; returns its wait status.
template <typename Body>
int in_child(int output, const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(output, STDOUT_FILENO);
    body();
    ::_exit(7);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

void run_some_steps(const std::filesystem::path& folder) {
  Log log(true);
  MonitorOptions options;
  options.run_dir = folder;
  options.total_steps = 300;
  options.log_every = 100;
  options.peak_tflops = 4;
  Monitor monitor(options, log);
  for (int64_t step = 1; step <= 300; ++step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.epoch = static_cast<double>(step) / 100;
    metrics.loss = 0.5;
    metrics.tflops = 2;
    metrics.seconds = static_cast<double>(step) / 10;
    monitor.step(metrics);
    if (step == 100) monitor.status("evaluating 1/3");
    if (step == 200) monitor.eval({200, 2, 81.5, 99, 0.4, 100, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  monitor.finish();
}

TEST(Monitor, DrawsABarOnATerminal) {
  const TemporaryFolder folder("tessera-bar");
  const Terminal terminal(160);
  ::setenv("TERM", "xterm", 1);
  const int status = in_child(terminal.inside, [&] { run_some_steps(folder.path()); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  const std::string text = terminal.take(50);
  EXPECT_NE(text.find("epoch "), std::string::npos);
  EXPECT_NE(text.find("50 % of peak"), std::string::npos);
  EXPECT_NE(text.find("evaluating 1/3"), std::string::npos);
  EXPECT_NE(text.find("\r\x1b[Kevaluation at step 200"), std::string::npos) << text;
  EXPECT_EQ(text.find("step 100/300"), std::string::npos) << "plain lines beside the bar";
  EXPECT_EQ(text.substr(text.size() - 4), "\r\x1b[K") << "the bar stays behind";
}

TEST(Monitor, PrintsLinesIntoAPipe) {
  const TemporaryFolder folder("tessera-bar");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int status = in_child(ends[1], [&] { run_some_steps(folder.path()); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  ::close(ends[1]);
  std::string text(65536, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), text.size()))));
  ::close(ends[0]);
  EXPECT_EQ(
      text,
      "step 1/300  epoch 0.01  loss 0.5000  lr 0.00e+00  0 img/s  2 TFLOP/s  50 % of peak  data 0 %  comm 0 "
      "%  0 B\n"
      "step 100/300  epoch 1.00  loss 0.5000  lr 0.00e+00  0 img/s  2 TFLOP/s  50 % of peak  data 0 %  comm "
      "0 %  0 B  "
      "0:20 "
      "left\n"
      "step 200/300  epoch 2.00  loss 0.5000  lr 0.00e+00  0 img/s  2 TFLOP/s  50 % of peak  data 0 %  comm "
      "0 %  0 B  "
      "0:10 "
      "left\n"
      "evaluation at step 200 (epoch 2.00): top-1 81.50 %, top-5 99.00 %, loss 0.4000; 100 images in 1.0 s\n"
      "step 300/300  epoch 3.00  loss 0.5000  lr 0.00e+00  top-1 81.50 %  0 img/s  2 TFLOP/s  50 % of peak  "
      "data 0 %  "
      "comm "
      "0 %  0 B  0:00 left\n");
}

TEST(Monitor, RunOutlivesItsTerminalAndItsPipe) {
  const TemporaryFolder folder("tessera-bar");
  Terminal terminal(100);
  ::setenv("TERM", "xterm", 1);
  terminal.hang_up();
  int status = in_child(terminal.inside, [&] { run_some_steps(folder.path() / "terminal"); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  status = in_child(ends[1], [&] {
    ::signal(SIGPIPE, SIG_DFL);
    run_some_steps(folder.path() / "pipe");
  });
  ::close(ends[1]);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << "status " << status;
}

}  // namespace
}  // namespace tessera::monitor
