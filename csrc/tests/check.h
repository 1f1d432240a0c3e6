// A test framework of one page: TEST, CHECK, and digests of results that must have the same bits everywhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace demb_test {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

// FNV-1a over everything a test gives it. test_main.cc writes it to a file, and the files of the portable and of the
// AVX2 run are compared.
class Digest {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  uint64_t take() {
    const uint64_t value = value_;
    value_ = kEmpty;
    return value;
  }

 private:
  static constexpr uint64_t kEmpty = 14695981039346656037u;
  uint64_t value_ = kEmpty;
};

inline Digest& digest() {
  static Digest one;
  return one;
}

// What is being tested, printed when a check fails.
inline std::string& context() {
  static std::string text;
  return text;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace demb_test

#define TEST(name)                                                  \
  static void name();                                               \
  static const demb_test::Register register_##name(#name, name);    \
  static void name()

// Ends the process at the first failure: what comes after it would only repeat it.
#define CHECK(condition, ...)                                                                           \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      std::fprintf(stderr, "%s:%d: CHECK(%s) failed. %s ", __FILE__, __LINE__, #condition,              \
                   demb_test::context().c_str());                                                       \
      std::fprintf(stderr, " " __VA_ARGS__);                                                            \
      std::fprintf(stderr, "\n");                                                                       \
      std::exit(1);                                                                                     \
    }                                                                                                   \
  } while (false)
