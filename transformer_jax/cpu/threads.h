// Work shared by the threads of a pool, and the memory of each thread.
#ifndef TRANSFORMER_JAX_THREADS_H_
#define TRANSFORMER_JAX_THREADS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace {

// Memory of a thread, kept between calls. It begins with a line of the cache.
float* scratch(size_t floats) {
  constexpr size_t LINE = 64;
  static thread_local std::unique_ptr<float[]> memory;
  static thread_local size_t size = 0;
  if (size < floats) {
    memory.reset();
    size = 0;
    memory.reset(new float[floats + LINE / sizeof(float)]);
    size = floats;
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  return memory.get() + (LINE - address % LINE) % LINE / sizeof(float);
}

// Calls work(i) for all 0 <= i < n, on this thread and those of the pool. Returns whether there was
// enough memory.
template <class Pool, class Work>
bool in_parallel(Pool& pool, long n, Work work) {
  struct State {
    std::atomic<long> next{0}, done{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::condition_variable all_done;
  };
  auto state = std::make_shared<State>();
  auto run = [state, n, work] {
    for (long i; (i = state->next++) < n;) {
      try {
        work(i);
      } catch (const std::bad_alloc&) {
        state->failed = true;
      }
      if (++state->done == n) {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->all_done.notify_all();
      }
    }
  };
  for (long helpers = std::min<long>(n, pool.num_threads()) - 1; helpers > 0; helpers--) {
    auto copy = run;
    pool.Schedule(std::move(copy));
  }
  run();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->done == n; });
  return !state->failed;
}

}  // namespace

#endif  // TRANSFORMER_JAX_THREADS_H_
