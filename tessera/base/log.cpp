// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/log.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include "tessera/base/error.h"
#include "tessera/base/file_operation.h"
#include "tessera/base/one_line.h"

namespace tessera {
namespace {

std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char buffer[64];
  const size_t length = std::strftime(buffer, sizeof buffer, "%Y-%m-%d %H:%M:%S", &local);
  std::snprintf(buffer + length, sizeof buffer - length, ".%03d", static_cast<int>(millis));
  return buffer;
}

}  // namespace

Log::~Log() {
  if (file_ != nullptr) std::fclose(file_);
}

void Log::open_file(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  const FileOperation operation("open", path);
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    user_error({.where = "log.open",
                .problem = concat("cannot open log file ", path.string(), ": ", std::strerror(errno))});
  }
  const std::lock_guard lock(mutex_);
  if (file_ != nullptr) std::fclose(file_);
  file_ = file;
  path_ = path;
}

void Log::put(const char* level, const std::string& line, std::FILE* stream) {
  const std::lock_guard lock(mutex_);
  if (console_ && stream != nullptr) {
    if (before_line_) before_line_();
    std::fprintf(stream, "%s%s\n", level, line.c_str());
    std::fflush(stream);
  }
  if (file_ != nullptr) {
    const FileOperation operation("write", path_);
    std::fprintf(file_, "%s %s%s\n", timestamp().c_str(), level, line.c_str());
    std::fflush(file_);
  }
}

void Log::info(const std::string& line) { put("", line, lines_); }
void Log::warn(const std::string& line) { put("warning: ", one_line(line), stderr); }
void Log::record(const std::string& line) { put("", line, nullptr); }

}  // namespace tessera
