// What a CPU kernel of the course sees: arrays as pointers with shapes and strides, and a parallel loop.
//
//   #include "kernel.h"
//
//   KERNEL twice(const Array* inputs, const Array* outputs, const double* numbers) {
//     const float* x = inputs[0].data<float>();
//     float* y = outputs[0].data<float>();
//     parallel_for(inputs[0].size(), 1024, [&](long first, long last) {
//       for (long i = first; i < last; i++) y[i] = 2 * x[i];
//     });
//   }
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

// What the body of a function is until the learner writes it. It is found before the compiler is called.
#define NOT_WRITTEN_YET(sentence) static_assert(false, sentence)

struct Array {
  void* pointer;
  const int64_t* shape;
  const int64_t* strides;  // in elements
  int64_t num_dimensions;

  template <typename T>
  T* data() const {
    return static_cast<T*>(pointer);
  }

  // Length and stride of an axis; negative ones count from the last.
  long length(int axis) const { return shape[axis < 0 ? num_dimensions + axis : axis]; }
  long stride(int axis) const { return strides[axis < 0 ? num_dimensions + axis : axis]; }

  long size() const {
    long product = 1;
    for (int axis = 0; axis < num_dimensions; axis++) product *= shape[axis];
    return product;
  }
};

// A kernel is a C function of inputs, outputs and the numbers that Python passes along, as in the example.
// All else in a source is its library's own.
#define KERNEL extern "C" __attribute__((visibility("default"))) void

// Cuts 0 ... count into even pieces of `grain` or less and calls `task(context, first, last)` for each, on all
// threads. The extension puts its address here.
using Task = void (*)(void* context, long first, long last);
extern "C" {
__attribute__((used, visibility("default"))) void (*tiny_llm_run_tasks)(long count, long grain, Task,
                                                                        void* context) = nullptr;
}

// The same for any `body(first, last)`.
template <typename Body>
void parallel_for(long count, long grain, Body body) {
  Task task = [](void* context, long first, long last) { (*static_cast<Body*>(context))(first, last); };
  tiny_llm_run_tasks(count, grain, task, &body);
}
