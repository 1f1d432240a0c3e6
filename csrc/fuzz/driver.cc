// Stands in for libFuzzer, which GCC has not: fuzz_bags [-runs=N] [-seed=S] [-only=K] [file …] feeds N inputs, random
// or mutated, each told by (S, K) alone so that a failing one can be run again; or the contents of files.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));

namespace {

using Input = std::vector<uint8_t>;

Input random_input(std::mt19937_64& random) {
  Input input(random() % 800);
  // Small bytes are small counts and ids; some stretches are wild.
  for (uint8_t& byte : input) byte = static_cast<uint8_t>(random() % (random() % 4 == 0 ? 256 : 16));
  return input;
}

void mutate(Input& input, std::mt19937_64& random) {
  for (uint64_t changes = 1 + random() % 8; changes > 0; --changes) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    const auto where = input.begin() + static_cast<std::ptrdiff_t>(at);
    const uint8_t extremes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    switch (random() % 4) {
      case 0:
        if (!input.empty()) *where = extremes[random() % 5];
        break;
      case 1: input.insert(where, static_cast<uint8_t>(random())); break;
      case 2: input.erase(where, input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + random() % 9))); break;
      default: input.insert(where, 8, extremes[random() % 5]);  // an id, an offset, two weights
    }
  }
}

// Every third input is mutated from one that another run has too.
Input input_of(uint64_t seed, uint64_t run) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + run);
  if (run % 3 != 0) return random_input(random);
  std::mt19937_64 parent(seed * 0x9e3779b97f4a7c15u + run / 2);
  Input input = random_input(parent);
  mutate(input, random);
  return input;
}

void tell_run() { std::fprintf(stderr, "fuzz: %s\n", demb_test::context().c_str()); }

bool run_file(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) return false;
  Input input;
  for (int c; (c = std::fgetc(file)) != EOF;) input.push_back(static_cast<uint8_t>(c));
  std::fclose(file);
  LLVMFuzzerTestOneInput(input.data(), input.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = 10000, seed = 1, first = 0;
  bool files = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "-runs=", 6) == 0) runs = std::strtoull(argv[i] + 6, nullptr, 10);
    else if (std::strncmp(argv[i], "-seed=", 6) == 0) seed = std::strtoull(argv[i] + 6, nullptr, 10);
    else if (std::strncmp(argv[i], "-only=", 6) == 0) first = std::strtoull(argv[i] + 6, nullptr, 10), runs = 1;
    else if (run_file(argv[i])) files = true;
    else return std::fprintf(stderr, "no such option or file: %s\n", argv[i]), 2;
  }
  if (files) return 0;
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(tell_run);
  for (uint64_t run = first; run < first + runs; ++run) {
    demb_test::context() = "-seed=" + std::to_string(seed) + " -only=" + std::to_string(run);
    const Input input = input_of(seed, run);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("fuzz: %llu inputs\n", static_cast<unsigned long long>(runs));
  return 0;
}
