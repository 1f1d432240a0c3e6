// Runs all tests, or those whose names contain an argument; writes their digests to the file $DEMB_DIGESTS.
#include "core/cpu.h"
#include "tests/check.h"

int main(int argc, char** argv) {
  const char* path = std::getenv("DEMB_DIGESTS");
  std::FILE* digests = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (path != nullptr && digests == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", path);
    return 1;
  }
  int ran = 0;
  for (const demb_test::Test& test : demb_test::tests()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    demb_test::context().clear();
    test.run();
    ++ran;
    if (digests != nullptr) {
      std::fprintf(digests, "%s %016llx\n", test.name, static_cast<unsigned long long>(demb_test::digest().take()));
    }
  }
  if (digests != nullptr) std::fclose(digests);
  std::printf("%d tests passed (%s)\n", ran, demb::has_avx2() ? "AVX2" : "portable");
  return ran > 0 ? 0 : 1;
}
