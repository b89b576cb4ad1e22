#include "thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace omserve {

namespace {

constexpr uint64_t kOpen = 1u << 31;
constexpr uint64_t kHelpers = kOpen - 1;
// Kernels of a step follow each other within microseconds; between two steps the cores belong to
// sampling and to the network.
constexpr std::chrono::microseconds kSpin{50};
// Reading the clock costs more than a pause does.
constexpr int kPausesPerLook = 32;

uint64_t job_of(uint64_t state) { return state >> 32; }

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_shared(int64_t num_items, const void* context, Call call) {
  num_items_ = num_items;
  context_ = context;
  call_ = call;
  next_item_.store(0, std::memory_order_relaxed);
  state_.store((job_of(state_.load()) + 1) << 32 | kOpen);
  if (num_asleep_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  take_items();
  // From here on nobody joins, and only those who did are waited for.
  state_.fetch_and(~kOpen);
  while (state_.load(std::memory_order_acquire) & kHelpers) pause();
}

void ThreadPool::take_items() {
  for (;;) {
    const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items_) return;
    call_(context_, item);
  }
}

bool ThreadPool::join(uint64_t& last_job) {
  uint64_t state = state_.load(std::memory_order_acquire);
  if (!(state & kOpen) || job_of(state) == last_job) return false;
  if (!state_.compare_exchange_strong(state, state + 1)) return false;
  last_job = job_of(state);
  return true;
}

void ThreadPool::work() {
  using Clock = std::chrono::steady_clock;
  uint64_t last_job = 0;
  auto idle_since = Clock::now();
  while (!is_ending_.load(std::memory_order_relaxed)) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (join(last_job)) {
        take_items();
        state_.fetch_sub(1, std::memory_order_release);
        idle_since = Clock::now();
      }
      pause();
    }
    if (Clock::now() - idle_since > kSpin) {
      sleep_until_other_job(last_job);
      idle_since = Clock::now();
    }
  }
}

void ThreadPool::sleep_until_other_job(uint64_t last_job) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++num_asleep_;
  wake_.wait(lock, [&] {
    const uint64_t state = state_.load();
    return is_ending_.load() || ((state & kOpen) && job_of(state) != last_job);
  });
  --num_asleep_;
}

}  // namespace omserve
