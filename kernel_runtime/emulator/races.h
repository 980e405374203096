// Threads that read what another one writes, with no barrier between: an error in whatever order they run.
//
// The compiler calls the functions at the end at each access to memory (-fsanitize=thread, without its library).
// Of each word that the threads of a group share we know who wrote it last, and which two threads read it last.
// A word that several threads write, and none reads meanwhile, is left to the result.
#pragma once

#include <cstdint>

// A part of emulator.h, which includes it.
namespace emulator {

struct Access {
  uint32_t stretch;  // between two barriers
  int thread, num_orders;
};

struct Word {
  Access write, reads[2];
};

constexpr int WORD_BYTES = 4;
static uint32_t stretch;          // the one that runs; they are counted over all groups
static int line_of_barrier;       // that began it, 0 at the beginning of a group
static const char* shared_start;  // of the memory that all shared arrays lie in
static uint64_t shared_bytes;

static void begin_stretch(int line) {
  stretch++;
  line_of_barrier = line;
}

static void watch_memory(Memory& memory) {
  memory.words = new Word[(memory.bytes + WORD_BYTES - 1) / WORD_BYTES]();
  const char *first = memory.start, *end = memory.start + memory.bytes;
  if (shared_bytes && shared_start < first) first = shared_start;
  if (shared_bytes && shared_start + shared_bytes > end) end = shared_start + shared_bytes;
  shared_start = first;
  shared_bytes = end - first;
}

NOT_WATCHED static bool is_unordered(const Access& one, const Access& now) {
  if (one.stretch != now.stretch || one.thread == now.thread) return false;
  return one.thread / LANES != now.thread / LANES || one.num_orders == now.num_orders;
}

NOT_WATCHED static void stop_for_race(const Memory& memory, uint64_t word, int writer, int reader) {
  char place[32] = "";
  if (line_of_barrier) snprintf(place, sizeof place, " after the one in line %d", line_of_barrier);
  EMULATOR_STOP(
      "thread %d writes %s[%lld] and thread %d reads it, and no barrier comes between them%s. "
      "The result depends on the order of the threads: a barrier is missing.",
      writer, memory.name, static_cast<long long>(word), reader, place);
}

// Notes an access to shared memory, word by word.
NOT_WATCHED static void watch_shared(const char* address, uint64_t bytes, bool is_write) {
  for (int i = launch.num_buffers; i < num_memories; i++) {
    const Memory& memory = memories[i];
    if (address < memory.start || address >= memory.start + memory.bytes) continue;
    const Access now = {stretch, thread_index(), current->num_orders};
    const uint64_t offset = address - memory.start;
    for (uint64_t at = offset / WORD_BYTES; at * WORD_BYTES < offset + bytes; at++) {
      Word& word = memory.words[at];
      if (!is_write && is_unordered(word.write, now)) stop_for_race(memory, at, word.write.thread, now.thread);
      for (const Access& read : word.reads)
        if (is_write && is_unordered(read, now)) stop_for_race(memory, at, now.thread, read.thread);
      if (is_write) {
        word.write = now;
      } else {
        if (word.reads[0].thread != now.thread) word.reads[1] = word.reads[0];
        word.reads[0] = now;
      }
    }
    return;
  }
}

// This runs at each access of a kernel, most of which are none to shared memory.
NOT_WATCHED static inline void watch(const void* accessed, uint64_t bytes, bool is_write) {
  auto* address = static_cast<const char*>(accessed);
  if (static_cast<uint64_t>(address - shared_start) < shared_bytes && current != nullptr)
    watch_shared(address, bytes, is_write);
}

NOT_WATCHED static void stop_if_misaligned(const char* address, int bytes) {
  for (int i = 0; i < num_memories && current != nullptr; i++)
    if (address >= memories[i].start && address < memories[i].start + memories[i].bytes)
      EMULATOR_STOP("thread %d accesses %d bytes of %s at once, at byte %lld: that is no multiple of them",
                    thread_index(), bytes, memories[i].name, static_cast<long long>(address - memories[i].start));
}

// An access of several words at once is one only where a multiple of its bytes begins.
template <int bytes>
NOT_WATCHED static inline void watch_aligned(const void* accessed, bool is_write) {
  if (reinterpret_cast<uint64_t>(accessed) % bytes != 0)
    stop_if_misaligned(static_cast<const char*>(accessed), bytes);
  watch(accessed, bytes, is_write);
}

}  // namespace emulator

#define HOOK(name, bytes, is_write, watch)                           \
  NOT_WATCHED void __tsan_##name##bytes(void* p) {                   \
    watch;                                                           \
    emulator::note(p, bytes, is_write, __builtin_return_address(0)); \
  }
#define HOOKS(bytes)                                                                  \
  HOOK(read, bytes, false, emulator::watch_aligned<bytes>(p, false))                  \
  HOOK(write, bytes, true, emulator::watch_aligned<bytes>(p, true))                   \
  HOOK(unaligned_read, bytes, false, emulator::watch(p, bytes, false))                \
  HOOK(unaligned_write, bytes, true, emulator::watch(p, bytes, true))

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_init() {}
NOT_WATCHED void __tsan_func_entry(void*) {}
NOT_WATCHED void __tsan_func_exit() {}
NOT_WATCHED void __tsan_read_range(void* p, unsigned long bytes) { emulator::watch(p, bytes, false); }
NOT_WATCHED void __tsan_write_range(void* p, unsigned long bytes) { emulator::watch(p, bytes, true); }
NOT_WATCHED void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) { return memcpy(to, from, bytes); }
NOT_WATCHED void* __tsan_memmove(void* to, const void* from, unsigned long bytes) { return memmove(to, from, bytes); }
NOT_WATCHED void* __tsan_memset(void* to, int byte, unsigned long bytes) { return memset(to, byte, bytes); }
}
