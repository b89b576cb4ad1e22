// A pool of threads for loops of a few microseconds.
//
// Items are handed out one by one, so a thread that lost its core to somebody else delays one item
// and not a share of them, and a thread that sleeps is not waited for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace omserve {

class ThreadPool {
 public:
  // `num_threads` counts the caller of `run`, who works too.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Call `body(item)` for every item of 0 .. num_items - 1, and return when all are done.
  template <class Body>
  void run(int64_t num_items, const Body& body) {
    if (num_items <= 1 || workers_.empty()) {
      for (int64_t item = 0; item < num_items; ++item) body(item);
      return;
    }
    run_shared(num_items, &body, [](const void* context, int64_t item) {
      (*static_cast<const Body*>(context))(item);
    });
  }

 private:
  using Call = void (*)(const void* context, int64_t item);

  void run_shared(int64_t num_items, const void* context, Call call);
  void work();
  bool join(uint64_t& last_job);
  void take_items();
  void sleep_until_other_job(uint64_t last_job);

  // Number of the job in the upper half, then whether it takes helpers, then how many it has.
  std::atomic<uint64_t> state_{0};
  std::atomic<int64_t> next_item_{0};
  std::atomic<int> num_asleep_{0};
  std::atomic<bool> is_ending_{false};
  int64_t num_items_ = 0;
  const void* context_ = nullptr;
  Call call_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace omserve
