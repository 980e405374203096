// CUDA's <cuda_pipeline.h>: copies from device memory to shared memory that go on while the thread computes.
//
// A copy reads at once and writes when its thread waits for it. Until then nan lies where it goes: a kernel that
// doesn't wait computes nan. To other threads the copy is a write when it begins and again at the wait, so one that
// reads with no barrier after the wait is reported.
#pragma once

#include "cuda.h"

namespace emulator {

constexpr int COPY_BYTES = 16;
constexpr int MAX_COPIES = 64;  // of a thread, under way at a time

struct Copy {
  void* to;
  char bytes[COPY_BYTES];
  int commit;  // that it belongs to, counted from 0
};

static Copy copies[MAX_THREADS][MAX_COPIES];

static bool is_shared(const void* address) {
  return static_cast<uint64_t>(static_cast<const char*>(address) - shared_start) < shared_bytes;
}

}  // namespace emulator

// A call of its own, since the place of the call stands for the instruction when accesses are counted.
__attribute__((noinline)) NOT_WATCHED static void __pipeline_memcpy_async(
    void* to, const void* from, uint64_t bytes) {
  using namespace emulator;
  if (bytes != COPY_BYTES) EMULATOR_STOP("the emulator copies 16 bytes at a time, not %d", static_cast<int>(bytes));
  if (!is_shared(to) || is_shared(from))
    EMULATOR_STOP("thread %d: an asynchronous copy goes from device memory to shared memory", thread_index());
  if (current->num_copies == MAX_COPIES) EMULATOR_STOP("thread %d never waits for its copies", thread_index());
  watch_aligned<COPY_BYTES>(from, false);
  watch_aligned<COPY_BYTES>(to, true);
  note(from, bytes, false, __builtin_return_address(0));
  note(to, bytes, true, __builtin_return_address(0));
  Copy& copy = copies[thread_index()][current->num_copies++];
  copy.to = to;
  copy.commit = current->num_commits;
  memcpy(copy.bytes, from, COPY_BYTES);
  for (int i = 0; i < COPY_BYTES; i += sizeof POISON) memcpy(static_cast<char*>(to) + i, &POISON, sizeof POISON);
}

static void __pipeline_commit() { emulator::current->num_commits++; }

// Waits for the copies of all commits but the last `prior`.
NOT_WATCHED static void __pipeline_wait_prior(int prior) {
  using namespace emulator;
  Copy* own = copies[thread_index()];
  int num_left = 0;
  for (int i = 0; i < current->num_copies; i++) {
    if (own[i].commit >= current->num_commits - prior) {
      own[num_left++] = own[i];
      continue;
    }
    watch(own[i].to, COPY_BYTES, true);
    memcpy(own[i].to, own[i].bytes, COPY_BYTES);
  }
  current->num_copies = num_left;
}
