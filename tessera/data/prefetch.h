// SPDX-License-Identifier: Apache-2.0
// Batches made ahead by worker threads, delivered in order. One thread calls next(); the makers' functions
// are called from the workers, several at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tessera/data/batch.h"

namespace tessera::data {

/// A range of samples of a batch.
struct SampleRange {
  int64_t first = 0, last = 0;  // [first, last)
};

/// Knows how to make batch 0, 1, 2, ...
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  /// Gives batch `index` its full size; false: the batches end before it.
  virtual bool start(int64_t index, Batch* batch) const = 0;
  /// Makes samples [first, last) of it. Returns early when `stop` becomes true.
  virtual void fill(int64_t index, SampleRange part, const std::atomic<bool>& stop, Batch* batch) const = 0;
};

struct PrefetchOptions {
  int64_t first = 0;                   // number of the first batch
  int64_t workers = 0;                 // 0: made in next()
  int64_t ahead = 1;                   // batches in work or ready, at most
  int64_t part_samples = 1;            // samples a worker takes at once, so that all can work on one batch
  std::vector<int> cores = {};         // the workers run on; empty: any
  std::function<bool()> give_up = {};  // asked while next() waits for workers
  double patience = 5;                 // seconds from its first true to the end of the wait
};

class Prefetcher {
 public:
  Prefetcher(const BatchMaker& maker, PrefetchOptions options);
  /// Stops the workers after the sample each is at, whatever state they are in.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// False at the end. Rethrows what making this batch threw (the error of its first sample in order), and
  /// throws it again when called again. Where give_up ended the wait, an empty batch with `given_up`; a
  /// worker may then hang for good in a file that does not answer, and the destructor with it.
  bool next(Batch* batch);
  /// Ends the workers; false: after so many seconds some hang in what they do. Nothing but the destructor may
  /// be called then.
  bool close(double seconds);
  /// Takes back a batch that is no longer needed: a later one is made in its memory, which is then neither
  /// asked for nor cleared again. From any thread.
  void give_back(Batch batch);
  /// Seconds next() has waited, or worked without workers, since the last call.
  double take_wait_seconds();

 private:
  /// A batch in work: claimed part by part, ready when all parts are done.
  struct Slot {
    Batch batch;
    bool started = false;
    int64_t size = 0, claimed = 0, done = 0;  // samples
    int64_t error_at = 0;                     // first sample of the part that failed
    std::exception_ptr error;
    bool ready() const { return started && done == size; }
  };

  /// False: gave up.
  bool wait_for(const Slot& slot, std::unique_lock<std::mutex>& lock);
  Batch take_spare();
  void work();
  bool make_here(Batch* batch);
  void begin_batch(std::unique_lock<std::mutex>& lock);
  void make_part(Slot& slot, int64_t index, std::unique_lock<std::mutex>& lock);
  Slot& slot(int64_t index) { return slots_[static_cast<size_t>(index % options_.ahead)]; }

  const BatchMaker& maker_;
  const PrefetchOptions options_;
  std::mutex mutex_;
  std::condition_variable work_, ready_, ended_;
  int64_t running_ = 0;  // workers
  std::vector<Slot> slots_;
  std::vector<Batch> spare_;  // given back, at most `ahead`
  int64_t next_ = 0;          // the consumer's next batch
  int64_t begun_ = 0;         // batches below it have been begun
  int64_t end_;               // known when a start() returned false
  bool beginning_ = false;    // one thread is inside start()
  std::atomic<bool> stop_ = false;
  double wait_seconds_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::data
