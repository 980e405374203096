// What a kernel asks of a GPU, counted: a mode of its own, since it makes the emulator slow.
//
// The compiler calls `note` at each access to memory. Between two operations at which the lanes of a SIMD group
// wait for each other, the accesses of all lanes that come from one instruction, in one of its turns, count as
// one access of the SIMD group: that is how a GPU carries them out.
#pragma once

#include <cstdlib>
#include <type_traits>

// A part of emulator.h, which includes it.
namespace emulator {

constexpr int SECTOR_BYTES = 32;  // that device memory hands out together
constexpr int BANKS = 32;         // of shared memory, each as wide as a word
constexpr int BANK_BYTES = 4;

// As Counts of counting.py.
struct Traffic {
  uint64_t requested, by_groups, once;  // bytes
};
struct Counts {
  Traffic read, written;
  uint64_t accesses, sectors;                // of device memory
  uint64_t shared_accesses, bank_conflicts;  // and rounds that shared memory takes on top
  uint64_t lanes, idle_lanes;
  uint64_t matrix_products, scalar_products;
};
static Counts counts;

#ifndef EMULATOR_COUNTS

using Float = float;
NOT_WATCHED static void note(const void*, uint64_t, bool, const void*) {}
static void begin_counting() {}
static void begin_group() {}
static void count_accesses() {}
static void end_counting() {}
static void count_matrix_products(uint64_t) {}

#else

static void count_matrix_products(uint64_t count) { counts.matrix_products += count; }

// A float whose products are counted. In a counted kernel it stands in the place of every float.
struct Counted {
  Counted() = default;
  template <typename V>
  constexpr Counted(V value) : value(static_cast<float>(value)) {}
  template <typename V, std::enable_if_t<std::is_same<V, float>::value, int> = 0>
  constexpr operator V() const {
    return value;
  }
  template <typename V, std::enable_if_t<!std::is_same<V, float>::value, int> = 0>
  constexpr explicit operator V() const {
    return static_cast<V>(value);
  }
  Counted operator-() const { return -value; }
  template <typename V>
  Counted& operator+=(V other) { return *this = *this + other; }
  template <typename V>
  Counted& operator-=(V other) { return *this = *this - other; }
  template <typename V>
  Counted& operator*=(V other) { return *this = *this * other; }
  template <typename V>
  Counted& operator/=(V other) { return *this = *this / other; }
  float value;
};
using Float = Counted;

template <typename A, typename B, typename R>
using Result = std::enable_if_t<
    (std::is_same<A, Counted>::value || std::is_same<B, Counted>::value) &&
        std::is_convertible<A, float>::value && std::is_convertible<B, float>::value,
    R>;
#define OF_COUNTED(operation, R, count)                           \
  template <typename A, typename B>                               \
  static Result<A, B, R> operator operation(A a, B b) {           \
    counts.scalar_products += count;                              \
    return static_cast<float>(a) operation static_cast<float>(b); \
  }
OF_COUNTED(+, Counted, 0)
OF_COUNTED(-, Counted, 0)
OF_COUNTED(*, Counted, 1)
OF_COUNTED(/, Counted, 1)
OF_COUNTED(==, bool, 0)
OF_COUNTED(!=, bool, 0)
OF_COUNTED(<, bool, 0)
OF_COUNTED(>, bool, 0)
OF_COUNTED(<=, bool, 0)
OF_COUNTED(>=, bool, 0)

struct Note {
  const void* instruction;
  const char* address;
  int turn;  // of the instruction, in its lane
  int lane, bytes, memory, is_write;
};

static Note* notes;
static uint64_t num_notes, max_notes;
static uint32_t* last_groups[2][MAX_BUFFERS];  // that read and wrote each byte of a buffer, counted from 1
static uint32_t groups_begun;

NOT_WATCHED static void note(const void* accessed, uint64_t bytes, bool is_write, const void* instruction) {
  auto* address = static_cast<const char*>(accessed);
  if (current == nullptr) return;
  for (int i = 0; i < num_memories; i++) {
    if (address < memories[i].start || address >= memories[i].start + memories[i].bytes) continue;
    if (num_notes == max_notes) {
      max_notes = 2 * max_notes + 1024;
      notes = static_cast<Note*>(realloc(notes, max_notes * sizeof(Note)));
    }
    notes[num_notes++] = {instruction, address, static_cast<int>(num_notes), lane(), static_cast<int>(bytes),
                          i,           is_write};
  }
}

NOT_WATCHED static int by_lane(const void* one, const void* other) {
  auto &a = *static_cast<const Note*>(one), &b = *static_cast<const Note*>(other);
  if (a.lane != b.lane) return a.lane < b.lane ? -1 : 1;
  if (a.instruction != b.instruction) return a.instruction < b.instruction ? -1 : 1;
  return a.turn < b.turn ? -1 : a.turn > b.turn;
}

NOT_WATCHED static int by_turn(const void* one, const void* other) {
  auto &a = *static_cast<const Note*>(one), &b = *static_cast<const Note*>(other);
  if (a.instruction != b.instruction) return a.instruction < b.instruction ? -1 : 1;
  if (a.turn != b.turn) return a.turn < b.turn ? -1 : 1;
  if (a.memory != b.memory) return a.memory < b.memory ? -1 : 1;
  return a.address < b.address ? -1 : a.address > b.address;
}

// An access to device memory: bytes that several lanes ask for count once.
NOT_WATCHED static void count_device(const Note* first, int num_lanes) {
  Traffic& traffic = first->is_write ? counts.written : counts.read;
  uint32_t* last_group = last_groups[first->is_write][first->memory];
  const char *end = first->address, *start = memories[first->memory].start;
  uint64_t last_sector = ~uint64_t{0};
  counts.accesses++;
  for (const Note* note = first; note < first + num_lanes; note++)
    for (const char* byte = note->address; byte < note->address + note->bytes; byte++) {
      if (byte < end) continue;
      end = byte + 1;
      traffic.requested++;
      const uint64_t offset = byte - start;
      counts.sectors += offset / SECTOR_BYTES != last_sector;
      last_sector = offset / SECTOR_BYTES;
      traffic.once += last_group[offset] == 0;
      traffic.by_groups += last_group[offset] != groups_begun;
      last_group[offset] = groups_begun;
    }
}

// An access to shared memory. Of wide accesses as many lanes go together as fill all banks; these need a round
// for each different word that one bank has to give.
NOT_WATCHED static void count_shared(const Note* first, int num_lanes) {
  const int lanes_at_once = first->bytes > BANK_BYTES ? BANKS * BANK_BYTES / first->bytes : LANES;
  counts.shared_accesses++;
  for (int first_lane = 0; first_lane < LANES; first_lane += lanes_at_once) {
    int words_of_bank[BANKS] = {}, most = 1;
    uint64_t end = 0;  // the first word that has not been counted
    for (const Note* note = first; note < first + num_lanes; note++) {
      if (note->lane < first_lane || note->lane >= first_lane + lanes_at_once) continue;
      const uint64_t offset = note->address - memories[note->memory].start;
      for (uint64_t word = offset / BANK_BYTES; word * BANK_BYTES < offset + note->bytes; word++) {
        if (word < end) continue;
        end = word + 1;
        if (++words_of_bank[word % BANKS] > most) most = words_of_bank[word % BANKS];
      }
    }
    counts.bank_conflicts += most - 1;
  }
}

// Counts what a SIMD group has accessed since its lanes last waited for each other.
NOT_WATCHED static void count_accesses() {
  qsort(notes, num_notes, sizeof(Note), by_lane);
  for (uint64_t i = 0, turn = 0; i < num_notes; i++) {
    const bool goes_on = i && notes[i].lane == notes[i - 1].lane && notes[i].instruction == notes[i - 1].instruction;
    turn = goes_on ? turn + 1 : 0;
    notes[i].turn = static_cast<int>(turn);
  }
  qsort(notes, num_notes, sizeof(Note), by_turn);
  for (uint64_t i = 0, next; i < num_notes; i = next) {
    const Note& first = notes[i];
    for (next = i + 1; next < num_notes; next++)
      if (notes[next].instruction != first.instruction || notes[next].turn != first.turn ||
          notes[next].memory != first.memory)
        break;
    const int num_lanes = static_cast<int>(next - i);
    counts.lanes += num_lanes;
    counts.idle_lanes += LANES - num_lanes;
    if (first.memory < launch.num_buffers)
      count_device(&first, num_lanes);
    else
      count_shared(&first, num_lanes);
  }
  num_notes = 0;
}

static void begin_counting() {
  counts = {};
  groups_begun = 0;
  for (int i = 0; i < launch.num_buffers; i++)
    for (auto& last_group : last_groups)
      last_group[i] = static_cast<uint32_t*>(calloc(launch.buffers[i].bytes, sizeof(uint32_t)));
}

static void begin_group() { groups_begun++; }

static void end_counting() {
  *launch.counts = counts;
  for (int i = 0; i < launch.num_buffers; i++)
    for (auto& last_group : last_groups) free(last_group[i]);
}

#endif

}  // namespace emulator
