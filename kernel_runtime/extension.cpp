// One MLX operation that calls any function of kernel.h's type, and the threads that it runs on.
//
// Compiled once a machine. The kernels themselves know nothing of MLX and compile in a second.

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <pthread.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "kernel.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/utils.h"

namespace mx = mlx::core;
namespace nb = nanobind;

using Kernel = void (*)(const Array* inputs, const Array* outputs, const double* numbers);

static void rest_a_moment() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Pieces of 0 ... count.
struct Job {
  long count, piece;
  Task task;
  void* context;

  long num_pieces() const { return (count + piece - 1) / piece; }
  void run(long i) const { task(context, i * piece, std::min((i + 1) * piece, count)); }
};

// Threads that take pieces one by one from a counter, so that one that is held up takes fewer. After its
// work a thread spins for a moment, since a model's next kernel is microseconds away, and then sleeps.
class Workers {
 public:
  explicit Workers(int num_threads) {
    for (int i = 1; i < num_threads; i++) std::thread([this] { work(); }).detach();
  }

  void run(const Job& job) {
    std::lock_guard one_at_a_time(run_mutex_);
    job_ = job;
    next_ = 0;
    is_open_ = true;
    num_jobs_++;
    if (num_sleeping_ > 0) {
      std::lock_guard lock(wake_mutex_);
      wake_.notify_all();
    }
    take_pieces();
    is_open_ = false;  // a thread that comes too late must find the door closed
    while (num_inside_ > 0) rest_a_moment();
  }

 private:
  void take_pieces() {
    for (long i; (i = next_++) < job_.num_pieces();) job_.run(i);
  }

  void work() {
    for (long last_job = 0;;) {
      for (int spins = 0; spins < NUM_SPINS && num_jobs_ == last_job; spins++) rest_a_moment();
      if (num_jobs_ == last_job) {
        std::unique_lock lock(wake_mutex_);
        num_sleeping_++;
        wake_.wait(lock, [&] { return num_jobs_ != last_job; });
        num_sleeping_--;
      }
      last_job = num_jobs_;
      num_inside_++;
      if (is_open_) take_pieces();
      num_inside_--;
    }
  }

  static constexpr int NUM_SPINS = 200;
  Job job_{};
  std::atomic<long> next_{0}, num_jobs_{0};
  std::atomic<bool> is_open_{false};
  std::atomic<int> num_inside_{0}, num_sleeping_{0};
  std::mutex run_mutex_, wake_mutex_;
  std::condition_variable wake_;
};

static int num_threads = 1;
static Workers* workers = nullptr;

// As many pieces for each thread, where that needs more than one.
static void run_tasks(long count, long grain, Task task, void* context) {
  const long num_pieces = (count + grain - 1) / grain, rounds = (num_pieces + num_threads - 1) / num_threads;
  if (num_pieces <= 1 || num_threads == 1) {
    const Job job{count, grain, task, context};
    for (long i = 0; i < num_pieces; i++) job.run(i);
    return;
  }
  static std::mutex creation;
  {
    std::lock_guard lock(creation);
    if (workers == nullptr) workers = new Workers(num_threads);
  }
  const long even = rounds * num_threads;
  workers->run({count, (count + even - 1) / even, task, context});
}

// Memory that the name of the last kernel that ran is found in when it has crashed; nullptr unless asked for.
static char* name_of_last = nullptr;
static size_t name_bytes = 0;

static void note_name(Kernel kernel) {
  Dl_info info;
  if (name_of_last == nullptr || !dladdr(reinterpret_cast<void*>(kernel), &info) || !info.dli_sname) return;
  std::snprintf(name_of_last, name_bytes, "%s", info.dli_sname);
}

constexpr size_t MAX_DIMENSIONS = 8;

// An array of kernel.h with shape and strides of its own, for a task that runs later.
class Operand {
 public:
  explicit Operand(const mx::array& array)
      : pointer_(const_cast<void*>(array.data<void>())), item_size_(array.itemsize()), num_dimensions_(array.ndim()) {
    std::copy(array.shape().begin(), array.shape().end(), shape_.begin());
    std::copy(array.strides().begin(), array.strides().end(), strides_.begin());
  }

  // What a kernel reads as one block must lie there as one; of what it reads by strides, the last axis.
  void arrange(bool is_strided) {
    int64_t stride = 1;
    bool is_in_order = true;
    for (size_t axis = num_dimensions_; axis-- > 0; stride *= shape_[axis]) {
      if (shape_[axis] > 1 && strides_[axis] != stride) is_in_order = false;
      if (is_strided) break;
    }
    if (!is_in_order) copy_in_order();
  }

  Array view() const {
    return {pointer_, shape_.data(), strides_.data(), static_cast<int64_t>(num_dimensions_)};
  }

 private:
  void copy_in_order() {
    const Array source = view();
    const long size = source.size();
    copy_.resize(size * item_size_);
    std::array<int64_t, MAX_DIMENSIONS> index{};
    for (long i = 0; i < size; i++) {
      long position = 0;
      for (size_t axis = 0; axis < num_dimensions_; axis++) position += index[axis] * strides_[axis];
      std::memcpy(&copy_[i * item_size_], static_cast<char*>(pointer_) + position * item_size_, item_size_);
      for (size_t axis = num_dimensions_; axis-- > 0 && ++index[axis] == shape_[axis];) index[axis] = 0;
    }
    int64_t stride = 1;
    for (size_t axis = num_dimensions_; axis-- > 0; stride *= shape_[axis]) strides_[axis] = stride;
    pointer_ = copy_.data();
  }

  void* pointer_;
  size_t item_size_, num_dimensions_;
  std::array<int64_t, MAX_DIMENSIONS> shape_, strides_;
  std::vector<char> copy_;
};

static std::vector<Array> views(const std::vector<Operand>& operands) {
  std::vector<Array> result;
  result.reserve(operands.size());
  for (const auto& operand : operands) result.push_back(operand.view());
  return result;
}

class CallKernel : public mx::Primitive {
 public:
  CallKernel(mx::Stream stream, Kernel kernel, uint64_t strided, bool is_in_place, std::vector<mx::Shape> shapes,
             std::vector<double> numbers)
      : mx::Primitive(stream),
        kernel_(kernel),
        strided_(strided),
        is_in_place_(is_in_place),
        shapes_(std::move(shapes)),
        numbers_(std::move(numbers)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<Operand> in, out;
    in.reserve(inputs.size());
    out.reserve(outputs.size());
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      in.emplace_back(input);
    }
    // Memory that nobody else refers to becomes the output's, as in MLX's own operations.
    const bool is_taken = is_in_place_ && inputs[0].is_donatable() && inputs[0].flags().row_contiguous;
    if (is_taken) outputs[0].copy_shared_buffer(inputs[0]);
    for (size_t i = 0; i < outputs.size(); i++) {
      if (i > 0 || !is_taken) outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      encoder.set_output_array(outputs[i]);
      out.emplace_back(outputs[i]);
    }
    const size_t num_copied = is_in_place_ && !is_taken ? outputs[0].nbytes() : 0;
    const bool has_work = std::any_of(outputs.begin(), outputs.end(), [](const auto& each) { return each.size() > 0; });
    if (!has_work) return;  // a kernel may divide by its sizes
    encoder.dispatch([kernel = kernel_, strided = strided_, num_copied, in = std::move(in), out = std::move(out),
                      numbers = numbers_]() mutable {
      for (size_t i = 0; i < in.size(); i++) in[i].arrange(strided >> i & 1);
      std::memcpy(out[0].view().pointer, in[0].view().pointer, num_copied);
      note_name(kernel);
      kernel(views(in).data(), views(out).data(), numbers.data());
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("a CPU kernel was asked to run on the GPU");
  }

  const char* name() const override { return "CallKernel"; }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const CallKernel&>(other);
    return kernel_ == that.kernel_ && strided_ == that.strided_ && is_in_place_ == that.is_in_place_ &&
           shapes_ == that.shapes_ && numbers_ == that.numbers_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override { return shapes_; }

 private:
  Kernel kernel_;
  uint64_t strided_;
  bool is_in_place_;
  std::vector<mx::Shape> shapes_;
  std::vector<double> numbers_;
};

static void check_shape(const mx::Shape& shape) {
  if (shape.size() > MAX_DIMENSIONS) {
    throw std::invalid_argument("a kernel has arrays of up to " + std::to_string(MAX_DIMENSIONS) +
                                " dimensions: reshape the one of " + std::to_string(shape.size()) + " dimensions");
  }
  if (std::any_of(shape.begin(), shape.end(), [](int size) { return size < 0; })) {
    throw std::invalid_argument("a kernel's array has a negative size");
  }
}

// What would be wrong for any kernel; what its own arrays must look like is its caller's to check.
static void check(const std::vector<mx::array>& inputs, bool is_in_place, const std::vector<mx::Shape>& shapes,
                  const std::vector<mx::Dtype>& dtypes) {
  for (const auto& input : inputs) check_shape(input.shape());
  for (const auto& shape : shapes) check_shape(shape);
  if (shapes.empty() || shapes.size() != dtypes.size()) {
    throw std::invalid_argument("a kernel needs outputs, and a shape and a type for each");
  }
  if (is_in_place && (inputs.empty() || inputs[0].shape() != shapes[0] || inputs[0].dtype() != dtypes[0])) {
    throw std::invalid_argument("in place, the first output must have the shape and the type of the first input");
  }
  const bool has_work = std::any_of(shapes.begin(), shapes.end(), [](const mx::Shape& shape) {
    return std::find(shape.begin(), shape.end(), 0) == shape.end();
  });
  const bool has_empty = std::any_of(inputs.begin(), inputs.end(), [](const auto& x) { return x.size() == 0; });
  if (!is_in_place && has_work && has_empty) {
    throw std::invalid_argument("a kernel needs work: none of its inputs may be empty unless its outputs are");
  }
}

// `strided` has a bit set for each input that the kernel reads by its strides. In place, the first output begins as a
// copy of the first input, and takes its memory if nobody else refers to it.
static std::vector<mx::array> call(
    uintptr_t kernel,
    const std::vector<mx::array>& inputs,
    uint64_t strided,
    bool is_in_place,
    const std::vector<std::vector<int>>& shapes,
    const std::vector<mx::Dtype>& dtypes,
    const std::vector<double>& numbers) {
  std::vector<mx::Shape> output_shapes;
  for (const auto& shape : shapes) output_shapes.emplace_back(shape.begin(), shape.end());
  check(inputs, is_in_place, output_shapes, dtypes);
  auto primitive = std::make_shared<CallKernel>(
      mx::default_stream(mx::Device::cpu), reinterpret_cast<Kernel>(kernel), strided, is_in_place, output_shapes,
      numbers);
  return mx::array::make_arrays(std::move(output_shapes), dtypes, primitive, inputs);
}

NB_MODULE(tiny_llm_extension, module) {
  nb::module_::import_("mlx.core");
  // Threads do not survive a fork: the child makes its own when it needs them.
  pthread_atfork(nullptr, nullptr, [] { workers = nullptr; });
  module.def("call", &call);
  module.def("set_num_threads", [](int count) { num_threads = count; });
  module.def("note_names", [](uintptr_t address, size_t bytes) {
    name_of_last = reinterpret_cast<char*>(address);
    name_bytes = bytes;
  });
  module.def("run_tasks_address", [] { return reinterpret_cast<uintptr_t>(&run_tasks); });
}
