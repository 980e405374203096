// Fibers: functions with stacks of their own that take turns on one thread, x86-64 and arm64.
#pragma once

#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the emulator switches fibers on x86-64 and arm64 only"
#endif

// Saves the registers a function must preserve on the stack, keeps the stack's address in *saved, and goes on
// where `next` was saved.
extern "C" void switch_stack(void** saved, void* next) asm("tiny_llm_switch_stack");

#if defined(__x86_64__)
asm(R"(
.text
.globl tiny_llm_switch_stack
tiny_llm_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
asm(R"(
.text
.balign 4
.globl tiny_llm_switch_stack
tiny_llm_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif

// What `switch_stack` takes to enter a function, which must not return, on a fresh stack.
static void* start_of_fiber(char* stack, uint64_t bytes, void (*function)()) {
  uint64_t top = (reinterpret_cast<uint64_t>(stack) + bytes) & ~uint64_t{15};
  auto* words = reinterpret_cast<uint64_t*>(top);
#if defined(__x86_64__)
  words[-1] = 0;  // where a caller's return address would lie
  words[-2] = reinterpret_cast<uint64_t>(function);
  for (int i = 3; i <= 8; i++) words[-i] = 0;
  return words - 8;
#else
  for (int i = 1; i <= 20; i++) words[-i] = 0;
  words[-20 + 11] = reinterpret_cast<uint64_t>(function);  // x30, the return address
  return words - 20;
#endif
}
