// Short vectors, which a thread loads or stores at once: float4, uint4, vec<half, 4> ...
#pragma once

#include "emulator.h"

namespace emulator {

template <int bytes>
struct Bits {  // so many, as one value for the compiler
  typedef uint32_t Type __attribute__((vector_size(bytes)));
};

template <typename E, int N>
struct Entries;
#define ENTRIES(N, ...)                       \
  template <typename E>                       \
  struct Entries<E, N> {                      \
    Entries() {}                              \
    union {                                   \
      typename Bits<N * sizeof(E)>::Type all; \
      E entries[N];                           \
      struct {                                \
        E __VA_ARGS__;                        \
      };                                      \
    };                                        \
  }
ENTRIES(2, x, y);
ENTRIES(4, x, y, z, w);

// A copy is one access to memory, at an address that is a multiple of the vector's bytes.
template <typename E, int N>
struct alignas(N * sizeof(E)) Wide : Entries<E, N> {
  static_assert(N * sizeof(E) <= 16, "a thread loads at most 16 bytes at once");
  Wide() {}
  Wide(const Wide& other) { this->all = other.all; }
  template <typename V>
  explicit Wide(V value) {
    for (E& entry : this->entries) entry = static_cast<E>(value);
  }
  template <typename V>
  explicit Wide(const Wide<V, N>& other) {
    for (int i = 0; i < N; i++) (*this)[i] = static_cast<E>(other[i]);
  }
  template <typename... More>
  Wide(E first, E second, More... more) {
    const E given[] = {first, second, static_cast<E>(more)...};
    static_assert(sizeof given == sizeof(Wide), "a vector is made of one entry or of all");
    for (int i = 0; i < N; i++) (*this)[i] = given[i];
  }
  Wide& operator=(const Wide& other) {
    this->all = other.all;
    return *this;
  }
  E& operator[](int i) { return this->entries[i]; }
  const E& operator[](int i) const { return this->entries[i]; }
};

#define BY_ENTRY(operation)                                                            \
  template <typename E, int N>                                                         \
  static Wide<E, N> operator operation(Wide<E, N> one, const Wide<E, N>& other) {      \
    for (int i = 0; i < N; i++) one[i] = one[i] operation other[i];                    \
    return one;                                                                        \
  }                                                                                    \
  template <typename E, int N, typename V>                                             \
  static Wide<E, N> operator operation(V one, const Wide<E, N>& other) {               \
    return Wide<E, N>(one) operation other;                                            \
  }                                                                                    \
  template <typename E, int N, typename V>                                             \
  static Wide<E, N> operator operation(const Wide<E, N>& one, V other) {               \
    return one operation Wide<E, N>(other);                                            \
  }                                                                                    \
  template <typename E, int N>                                                         \
  static Wide<E, N>& operator operation##=(Wide<E, N>& one, const Wide<E, N>& other) { \
    return one = one operation other;                                                  \
  }
BY_ENTRY(+)
BY_ENTRY(-)
BY_ENTRY(*)

}  // namespace emulator

#define VECTORS(name, E)                \
  using name##2 = emulator::Wide<E, 2>; \
  using name##4 = emulator::Wide<E, 4>;
VECTORS(float, emulator::Float)
VECTORS(int, int)
VECTORS(uint, unsigned)
