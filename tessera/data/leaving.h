// SPDX-License-Identifier: Apache-2.0
// A loader that somebody may have to leave behind.
#pragma once

#include <memory>
#include <utility>

namespace tessera::data {

/// Seconds: workers that do not hang end within it.
inline constexpr double kBrief = 0.5;

/// Owns a TrainLoader or an EvalLoader. When it goes, for whatever reason, workers that hang in a file which
/// does not answer are left behind with the loader: its own destructor would wait for them. The source they
/// read from is not its own; whoever asks left_behind() keeps that, or ends the process at once. Belongs to
/// one thread.
template <typename Loader>
class Leaving {
 public:
  /// `patience`: seconds that it waits for workers to end.
  Leaving(std::unique_ptr<Loader> loader, double patience)
      : loader_(std::move(loader)), patience_(patience) {}
  ~Leaving() { close(); }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

  Loader& operator*() { return *loader_; }
  Loader* operator->() { return loader_.get(); }
  /// Ends the workers; only this may be called afterwards.
  void close() { close(patience_); }
  /// The same with another patience: kBrief where files are known not to answer.
  void close(double patience) {
    if (std::exchange(closed_, true) || loader_->close(patience)) return;
    static_cast<void>(loader_.release());
    left_behind_ = true;
  }
  bool left_behind() const { return left_behind_; }

 private:
  std::unique_ptr<Loader> loader_;
  double patience_;
  bool closed_ = false, left_behind_ = false;
};

}  // namespace tessera::data
