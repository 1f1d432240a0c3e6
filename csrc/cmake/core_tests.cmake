# csrc/core's own tests and fuzz target, without TensorFlow: `make test-core`, `make sanitize`, `make fuzz`.
enable_testing()
find_package(Threads REQUIRED)
if(NOT CORE_SOURCES)
  message(FATAL_ERROR "distributed_embeddings: no source in csrc/core, nothing to test")
endif()

# Without a sanitizer the flags are the library's own. -O1: with -O3 the sanitizers double the time to compile, and find
# no more.
if(DEMB_SANITIZE)
  set(INSTRUMENT -O1 -g -fno-omit-frame-pointer -fsanitize=${DEMB_SANITIZE} -fno-sanitize-recover=all)
  target_compile_options(demb_core PUBLIC ${INSTRUMENT})
  target_link_options(demb_core PUBLIC ${INSTRUMENT})
endif()

file(GLOB TEST_SOURCES CONFIGURE_DEPENDS csrc/tests/*.cc)
add_executable(core_tests ${TEST_SOURCES})
target_link_libraries(core_tests PRIVATE demb_core Threads::Threads)

# GCC has no libFuzzer: driver.cc feeds the same entry point with seeded inputs. With Clang the library does.
add_executable(fuzz_bags csrc/fuzz/fuzz_bags.cc)
target_link_libraries(fuzz_bags PRIVATE demb_core Threads::Threads)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(fuzz_bags PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_bags PRIVATE -fsanitize=fuzzer)
else()
  target_sources(fuzz_bags PRIVATE csrc/fuzz/driver.cc)
endif()

# The instructions are chosen once a process, so each choice is a process, and their digests are compared.
foreach(isa portable best)
  add_test(NAME core_${isa} COMMAND core_tests)
  set_tests_properties(core_${isa} PROPERTIES FIXTURES_SETUP digests
    ENVIRONMENT "DEMB_ISA=${isa};DEMB_DIGESTS=${CMAKE_CURRENT_BINARY_DIR}/digests_${isa}.txt")
  add_test(NAME fuzz_${isa} COMMAND fuzz_bags -runs=20000 -seed=1)
  set_tests_properties(fuzz_${isa} PROPERTIES ENVIRONMENT "DEMB_ISA=${isa}")
endforeach()
add_test(NAME same_bits_on_both
  COMMAND ${CMAKE_COMMAND} -E compare_files digests_portable.txt digests_best.txt)
set_tests_properties(same_bits_on_both PROPERTIES FIXTURES_REQUIRED digests)
