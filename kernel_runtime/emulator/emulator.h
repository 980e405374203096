// A GPU's thread model on one CPU thread, to run Metal and CUDA kernels where there is no such GPU.
//
// A grid of groups of threads, in SIMD groups of 32 lanes. Each thread runs alone until it ends, waits at a
// barrier or takes part in a SIMD operation; then the next has its turn, in an order that the caller chooses.
// A kernel that is right is right in every order. To make mistakes show:
//   - shared memory is filled with nan before each group, outputs before the run;
//   - behind each buffer lies memory that must not be touched, and before it a zone that is checked;
//   - a barrier or SIMD operation that only some threads reach is an error;
//   - so is a thread that runs for seconds and neither ends nor waits;
//   - so is an entry of an output that no thread wrote;
//   - so is a thread that reads in shared memory what another one writes, with no barrier between;
//   - where an asynchronous copy goes, nan lies until the thread waits for it.
#pragma once

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "fibers.h"

#define NOT_WATCHED __attribute__((no_sanitize_thread))

struct uint3 {
  unsigned x, y, z;
};

namespace emulator {

constexpr int LANES = 32;
constexpr int MAX_THREADS = 1024;
constexpr int MAX_BUFFERS = 24;
constexpr uint64_t STACK_BYTES = 256 * 1024;
constexpr int TICK_SECONDS = 2;  // of the processor's time
constexpr uint64_t GUARD_BYTES = 1024 * 1024;  // around each buffer, whole pages
// Both are nan in every float type when they fill it.
constexpr uint16_t POISON = 0x7fff;
constexpr uint16_t NOT_WRITTEN = 0xffff;

enum class State { READY, AT_SIMD_OPERATION, AT_BARRIER, ENDED };

struct Thread {
  void* stack_pointer;
  State state;
  const char* waits_at;  // name of the operation
  int num_exchanges, num_orders;  // of all SIMD operations, and of those that order what lanes do to memory
  int line;                       // of the barrier that it waits at
  int num_copies, num_commits;    // its asynchronous copies under way, and commits of all so far
};

struct Combined {
  int num_exchanges;  // of the lanes, by which it is known to be theirs
  uint64_t value;
};

struct Word;
struct Counts;

struct Memory {
  const char* name;
  char *mapping, *start;
  uint64_t mapped_bytes, bytes;
  Word* words;  // of a shared array: who wrote and read them
};

// What Python passes for each input and output.
struct Buffer {
  const char* name;
  void* data;
  uint64_t bytes;
  int entry_bytes;
  int is_output;
  const int64_t* strides;
};

struct Launch {
  const Buffer* buffers;
  int num_buffers;
  const int* integers;
  const float* reals;
  uint3 num_groups;
  int num_threads;  // of a group, a multiple of 32
  int order;        // 0 forward, 1 backward, otherwise the seed of a random order
  Counts* counts;   // where a counted kernel leaves what it counted
};

static Launch launch;
static uint3 group;
static Thread threads[MAX_THREADS];
static Thread* current;  // nullptr outside the run
static void (*kernel)();
static void* scheduler;
static Memory memories[MAX_BUFFERS];
static int num_memories;
static uint64_t exchanged[2][MAX_THREADS];  // what the lanes of a SIMD operation hold out to each other
static Combined combined[2][MAX_THREADS / LANES];  // what a SIMD group made of all of it
static uint64_t random_state;
static char sentence[512];  // the error; empty as long as there is none
static struct sigaction old_actions[2], old_tick_action;
static long num_turns, num_turns_at_tick;
static pthread_t emulating;

NOT_WATCHED static int thread_index() { return static_cast<int>(current - threads); }
NOT_WATCHED static int lane() { return thread_index() % LANES; }

// --- errors ------------------------------------------------------------------------------------------------

__attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
  if (sentence[0]) return;
  int length = 0;
  if (current != nullptr)
    length = snprintf(sentence, sizeof sentence, "group (%u, %u, %u): ", group.x, group.y, group.z);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence + length, sizeof sentence - length, format, arguments);
  va_end(arguments);
}

// An error in the thread that runs, which goes no further.
#define EMULATOR_STOP(...)                                        \
  do {                                                            \
    emulator::fail(__VA_ARGS__);                                  \
    switch_stack(&emulator::current->stack_pointer, emulator::scheduler); \
  } while (0)

// --- memory ------------------------------------------------------------------------------------------------

static void fill(char* start, uint64_t bytes, uint16_t pattern) {
  uint64_t filled = bytes < sizeof pattern ? bytes : sizeof pattern;
  memcpy(start, &pattern, filled);
  for (uint64_t more; filled < bytes; filled += more) {
    more = bytes - filled < filled ? bytes - filled : filled;
    memcpy(start + filled, start, more);
  }
}

static bool is_filled(const char* start, uint64_t bytes, uint16_t pattern) {
  for (uint64_t i = 0; i < bytes; i += sizeof pattern)
    if (memcmp(start + i, &pattern, sizeof pattern)) return false;
  return true;
}

// Poisoned memory that ends where a guard begins; another guard lies before the page where it begins.
static char* allocate(const char* name, uint64_t bytes) {
  uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t pages = (bytes + page - 1) / page * page;
  Memory memory = {name, nullptr, nullptr, pages + 2 * GUARD_BYTES, bytes, nullptr};
  void* mapping = mmap(nullptr, memory.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (mapping == MAP_FAILED || num_memories == MAX_BUFFERS) {
    fail("there is no memory for %s", name);
    return nullptr;
  }
  memory.mapping = static_cast<char*>(mapping);
  memory.start = memory.mapping + GUARD_BYTES + pages - bytes;
  mprotect(memory.mapping + GUARD_BYTES, pages, PROT_READ | PROT_WRITE);
  fill(memory.mapping + GUARD_BYTES, pages, POISON);
  memories[num_memories++] = memory;
  return memory.start;
}

static void check_what_lies_before(const Memory& memory) {
  const char* zone = memory.mapping + GUARD_BYTES;
  if (!is_filled(zone, memory.start - zone, POISON))
    fail("a thread writes before the beginning of %s", memory.name);
}

static void check_written(const Memory& memory, int entry_bytes) {
  for (uint64_t i = 0; i < memory.bytes; i += entry_bytes)
    if (is_filled(memory.start + i, entry_bytes, NOT_WRITTEN))
      return fail("entry %lld of %s is not written", static_cast<long long>(i / entry_bytes), memory.name);
}

// The processor refused an access of the thread that runs; of the guards we know which buffer it was about.
static void on_fault(int number, siginfo_t* info, void*) {
  if (current == nullptr || !pthread_equal(pthread_self(), emulating)) {
    sigaction(number, &old_actions[number == SIGBUS], nullptr);  // it comes again, to whom it concerns
    return;
  }
  auto* address = static_cast<char*>(info->si_addr);
  for (int i = 0; i < num_memories; i++) {
    const Memory& memory = memories[i];
    if (address < memory.mapping || address >= memory.mapping + memory.mapped_bytes) continue;
    const char* side = address < memory.start ? "before the beginning" : "behind the end";
    EMULATOR_STOP("thread %d reads or writes %s of %s", thread_index(), side, memory.name);
  }
  EMULATOR_STOP("thread %d reads or writes far outside its buffers", thread_index());
}

// A thread whose turn lasts from one tick to the next is in a loop without an end.
static void on_tick(int number, siginfo_t*, void*) {
  if (!pthread_equal(pthread_self(), emulating)) {
    pthread_kill(emulating, number);
    return;
  }
  if (current != nullptr && num_turns == num_turns_at_tick)
    EMULATOR_STOP("thread %d runs on and on: a loop in it does not end", thread_index());
  num_turns_at_tick = num_turns;
}

static void set_ticks(int seconds) {
  struct itimerval ticks = {{seconds, 0}, {seconds, 0}};
  setitimer(ITIMER_VIRTUAL, &ticks, nullptr);
}

}  // namespace emulator

#include "counts.h"
#include "races.h"

namespace emulator {

// --- waiting -----------------------------------------------------------------------------------------------

static void wait(State state, const char* operation) {
  current->state = state;
  current->waits_at = operation;
  switch_stack(&current->stack_pointer, scheduler);
}

// Waits until all threads of the group are here.
static void barrier(const char* operation, int line) {
  current->line = line;
  wait(State::AT_BARRIER, operation);
}

// What the lanes of the SIMD group hold out to each other, when all have come to this operation.
template <typename V>
static const uint64_t* exchange(V value, const char* operation, bool orders_memory = true) {
  current->num_orders += orders_memory;
  // The next exchange uses the other half: a lane may get there before the others have read this one.
  uint64_t* slots = exchanged[current->num_exchanges++ % 2] + thread_index() / LANES * LANES;
  slots[lane()] = 0;
  memcpy(&slots[lane()], &value, sizeof value);
  wait(State::AT_SIMD_OPERATION, operation);
  return slots;
}

template <typename V>
static V value_in(const uint64_t* slot) {
  V value;
  memcpy(&value, slot, sizeof value);
  return value;
}

// One value of all lanes' values, taken in their order. The first lane that goes on computes it for all.
template <typename V, typename Join>
static V combine(V value, const char* operation, Join join) {
  const uint64_t* slots = exchange(value, operation);
  Combined& result = combined[current->num_exchanges % 2][thread_index() / LANES];
  if (result.num_exchanges != current->num_exchanges) {
    V all = value_in<V>(slots);
    for (int i = 1; i < LANES; i++) all = join(all, value_in<V>(&slots[i]));
    result.num_exchanges = current->num_exchanges;
    memcpy(&result.value, &all, sizeof all);
  }
  return value_in<V>(&result.value);
}

template <typename V, typename Index>
static V value_of_lane(V value, Index index, const char* operation) {
  if (static_cast<unsigned>(index) >= LANES)
    EMULATOR_STOP("thread %d asks %s for lane %d", thread_index(), operation, static_cast<int>(index));
  return value_in<V>(&exchange(value, operation)[index]);
}

template <typename V>
static V value_of_later_lane(V value, int delta, const char* operation) {
  int index = lane() + delta < LANES ? lane() + delta : lane();
  return value_in<V>(&exchange(value, operation)[index]);
}

// --- taking turns ------------------------------------------------------------------------------------------

static uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

// 0 ... count - 1 in the order of the launch.
static void put_in_order(int* numbers, int count) {
  for (int i = 0; i < count; i++) numbers[i] = launch.order == 1 ? count - 1 - i : i;
  if (launch.order < 2) return;
  for (int i = count - 1; i > 0; i--) {
    int other = static_cast<int>(next_random() % (i + 1)), number = numbers[i];
    numbers[i] = numbers[other];
    numbers[other] = number;
  }
}

static void run_thread() {
  kernel();
  wait(State::ENDED, "its end");
}

static bool wait_alike(const Thread& one, const Thread& other) {
  return one.waits_at == other.waits_at || !strcmp(one.waits_at, other.waits_at);
}

// Lets a SIMD group go as far as it gets without the others.
static void run_simd_group(Thread* lanes) {
  int order[LANES];
  for (bool goes_on = true; goes_on;) {
    put_in_order(order, LANES);
    for (int i : order) {
      current = &lanes[i];
      num_turns++;
      if (current->state == State::READY) switch_stack(&scheduler, current->stack_pointer);
      if (sentence[0]) return;
    }
    count_accesses();
    for (int i = 0; i < LANES; i++)
      goes_on &= lanes[i].state == State::AT_SIMD_OPERATION && wait_alike(lanes[i], lanes[0]);
    for (int i = 0; goes_on && i < LANES; i++) lanes[i].state = State::READY;
  }
}

static bool all_threads_at(State state) {
  for (int i = 0; i < launch.num_threads; i++)
    if (threads[i].state != state) return false;
  return true;
}

// Names two threads that wait in different places, of one SIMD group if there are such.
static void fail_because_threads_diverge() {
  for (bool in_one_simd_group : {true, false})
    for (int i = 1; i < launch.num_threads; i++) {
      const Thread &one = threads[i - 1], &other = threads[i];
      if (in_one_simd_group && i % LANES == 0) continue;
      if (one.state == other.state && wait_alike(one, other)) continue;
      return fail("all threads must reach the same operations, but thread %d is at %s and thread %d at %s",
                  i - 1, one.waits_at, i, other.waits_at);
    }
}

static void run_group(char* stacks, int first_shared) {
  for (int i = first_shared; i < num_memories; i++) fill(memories[i].start, memories[i].bytes, POISON);
  memset(combined, 0, sizeof combined);
  begin_stretch(0);
  begin_group();
  for (int i = 0; i < launch.num_threads; i++)
    threads[i] = {start_of_fiber(stacks + i * STACK_BYTES, STACK_BYTES, run_thread), State::READY, ""};
  while (!sentence[0] && !all_threads_at(State::ENDED)) {
    int order[MAX_THREADS / LANES];
    int num_simd_groups = launch.num_threads / LANES;
    put_in_order(order, num_simd_groups);
    for (int i = 0; i < num_simd_groups && !sentence[0]; i++) run_simd_group(threads + order[i] * LANES);
    if (all_threads_at(State::AT_BARRIER)) {
      begin_stretch(threads[0].line);
      for (int i = 0; i < launch.num_threads; i++) threads[i].state = State::READY;
    } else if (!all_threads_at(State::ENDED))
      fail_because_threads_diverge();
  }
}

static void run_grid(char* stacks, int first_shared) {
  const uint3& count = launch.num_groups;
  int num_groups = static_cast<int>(count.x * count.y * count.z);
  int* order = new int[num_groups];
  put_in_order(order, num_groups);
  for (int i = 0; i < num_groups && !sentence[0]; i++) {
    unsigned number = order[i];
    group = {number % count.x, number / count.x % count.y, number / count.x / count.y};
    run_group(stacks, first_shared);
  }
  delete[] order;
}

// --- what the generated call uses --------------------------------------------------------------------------

struct Pointer {
  void* address;
  template <typename V>
  operator V*() const {
    return static_cast<V*>(address);
  }
};

static Pointer buffer(int number) { return {memories[number].start}; }
static const int64_t* strides(int number) { return launch.buffers[number].strides; }

// An array that the threads of a group share; `name` is the same text in all of them.
template <typename V>
static V* shared(const char* name, int count) {
  for (int i = launch.num_buffers; i < num_memories; i++)
    if (memories[i].name == name) return reinterpret_cast<V*>(memories[i].start);
  char* start = allocate(name, count * sizeof(V));
  if (start == nullptr) switch_stack(&current->stack_pointer, scheduler);
  watch_memory(memories[num_memories - 1]);
  return reinterpret_cast<V*>(start);
}

// Runs a kernel; the error in a sentence, or nullptr.
static const char* run(void (*function)(), const Launch& wanted) {
  launch = wanted;
  kernel = function;
  current = nullptr;
  emulating = pthread_self();
  sentence[0] = 0;
  num_memories = 0;
  num_turns = 0;
  stretch = 0;
  shared_bytes = 0;
  num_turns_at_tick = -1;
  random_state = 0x9e3779b97f4a7c15u * (launch.order + 1);
  for (int i = 0; i < launch.num_buffers; i++) {
    const Buffer& wanted_buffer = launch.buffers[i];
    char* start = allocate(wanted_buffer.name, wanted_buffer.bytes);
    if (start == nullptr) break;
    if (wanted_buffer.is_output)
      fill(start, wanted_buffer.bytes, NOT_WRITTEN);
    else
      memcpy(start, wanted_buffer.data, wanted_buffer.bytes);
  }
  uint64_t stack_bytes = launch.num_threads * STACK_BYTES;
  void* stacks = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (stacks == MAP_FAILED) fail("there is no memory for the stacks of %d threads", launch.num_threads);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  sigaction(SIGSEGV, &action, &old_actions[0]);
  sigaction(SIGBUS, &action, &old_actions[1]);
  action.sa_sigaction = on_tick;
  sigaction(SIGVTALRM, &action, &old_tick_action);
  set_ticks(TICK_SECONDS);
  begin_counting();
  if (!sentence[0]) run_grid(static_cast<char*>(stacks), launch.num_buffers);
  current = nullptr;
  end_counting();
  set_ticks(0);
  sigaction(SIGVTALRM, &old_tick_action, nullptr);
  sigaction(SIGSEGV, &old_actions[0], nullptr);
  sigaction(SIGBUS, &old_actions[1], nullptr);
  if (stacks != MAP_FAILED) munmap(stacks, stack_bytes);
  for (int i = 0; i < num_memories; i++) {
    if (!sentence[0]) check_what_lies_before(memories[i]);
    if (i < launch.num_buffers && launch.buffers[i].is_output) {
      if (!sentence[0]) check_written(memories[i], launch.buffers[i].entry_bytes);
      memcpy(launch.buffers[i].data, memories[i].start, memories[i].bytes);
    }
    munmap(memories[i].mapping, memories[i].mapped_bytes);
    delete[] memories[i].words;
  }
  return sentence[0] ? sentence : nullptr;
}

// --- types and functions that both languages have ----------------------------------------------------------

struct Half {
#if defined(__aarch64__)
  using Stored = __fp16;
#else
  using Stored = _Float16;
#endif
  Half() = default;
  Half(float value) : stored(static_cast<Stored>(value)) {}
  operator float() const { return static_cast<float>(stored); }
  Stored stored;
};

struct BFloat16 {
  BFloat16() = default;
  BFloat16(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    if (value == value) word += 0x7fff + (word >> 16 & 1);  // to the nearest, halves to even
    bits = static_cast<uint16_t>(word >> 16) | (value != value ? 0x40 : 0);
  }
  operator float() const {
    uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
  }
  uint16_t bits;
};

}  // namespace emulator

static int min(int x, int y) { return x < y ? x : y; }
static int max(int x, int y) { return x > y ? x : y; }
static emulator::Float min(float x, float y) { return fminf(x, y); }
static emulator::Float max(float x, float y) { return fmaxf(x, y); }
