// Calls one kernel for each case of a file, and writes what it computes: a program of its own, for an emulator.
//
// A case is, in 64-bit integers: how many inputs, outputs and numbers; then of each array the bytes of an entry, how
// many dimensions it has, and its shape. The numbers follow as doubles, then the entries of the inputs.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include SOURCE

static void run_tasks(long count, long grain, Task task, void* context) {
  for (long first = 0; first < count; first += grain) task(context, first, std::min(first + grain, count));
}

struct Block {
  std::vector<int64_t> shape, strides;
  std::vector<char> entries;

  Array view() { return {entries.data(), shape.data(), strides.data(), static_cast<int64_t>(shape.size())}; }
};

template <typename V>
static bool read(V* values, size_t count) {
  return fread(values, sizeof(V), count, stdin) == count;
}

static void must(bool is_right) {
  if (!is_right) exit(1);
}

static std::vector<Block> read_shapes(int64_t count) {
  std::vector<Block> blocks(count);
  for (Block& block : blocks) {
    int64_t entry_bytes, num_dimensions;
    must(read(&entry_bytes, 1) && read(&num_dimensions, 1));
    block.shape.resize(num_dimensions), block.strides.resize(num_dimensions);
    must(read(block.shape.data(), num_dimensions));
    int64_t size = 1;
    for (int64_t axis = num_dimensions; axis-- > 0; size *= block.shape[axis]) block.strides[axis] = size;
    block.entries.assign(size * entry_bytes, -1);  // nan in every type of floats, wherever nothing is written
  }
  return blocks;
}

static std::vector<Array> views(std::vector<Block>& blocks) {
  std::vector<Array> result;
  for (Block& block : blocks) result.push_back(block.view());
  return result;
}

int main() {
  tiny_llm_run_tasks = run_tasks;
  for (int64_t counts[3]; read(counts, 3);) {
    std::vector<Block> inputs = read_shapes(counts[0]), outputs = read_shapes(counts[1]);
    std::vector<double> numbers(counts[2]);
    must(read(numbers.data(), numbers.size()));
    for (Block& input : inputs) must(read(input.entries.data(), input.entries.size()));
    FUNCTION(views(inputs).data(), views(outputs).data(), numbers.data());
    for (Block& output : outputs) fwrite(output.entries.data(), 1, output.entries.size(), stdout);
  }
}
