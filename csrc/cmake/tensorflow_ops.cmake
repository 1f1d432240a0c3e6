# The library that TensorFlow loads: csrc/tf over csrc/core.
file(GLOB TF_SOURCES CONFIGURE_DEPENDS csrc/tf/*.cc)
if(NOT TF_SOURCES)
  message(STATUS "distributed_embeddings: no source in csrc/tf, nothing to build")
  return()
endif()

if(NOT DEMB_PYTHON)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(DEMB_PYTHON ${Python3_EXECUTABLE})
endif()
# pip's isolated builds hide the environment they install into behind PYTHONPATH; TensorFlow is there.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH --unset=PYTHONNOUSERSITE
          ${DEMB_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/find_tensorflow.py
  OUTPUT_VARIABLE TF_FOUND ERROR_VARIABLE TF_ERROR RESULT_VARIABLE TF_MISSING)
if(TF_MISSING)
  message(FATAL_ERROR
    "distributed_embeddings: the kernels are compiled against the TensorFlow they will run with, and it was not found: "
    "${TF_ERROR}Do one of these:\n"
    " - install it first: pip install 'tensorflow-cpu==2.21.*' (or 'tensorflow[and-cuda]==2.21.*'), then again;\n"
    " - where the build runs in a virtual environment of its own (uv, python -m build), name the interpreter that has "
    "it: -C cmake.define.DEMB_PYTHON=$(which python);\n"
    " - do without kernels, several times as slow: -C cmake.define.DEMB_KERNELS=OFF")
endif()
list(GET TF_FOUND 0 TF_DIR)
list(GET TF_FOUND 1 TF_VERSION)
message(STATUS "distributed_embeddings: kernels for TensorFlow ${TF_VERSION} in ${TF_DIR}")

add_library(demb_kernels MODULE ${TF_SOURCES})
set_target_properties(demb_kernels PROPERTIES PREFIX "_")
target_include_directories(demb_kernels PRIVATE csrc)
# SYSTEM: TensorFlow's headers give hundreds of warnings.
target_include_directories(demb_kernels SYSTEM PRIVATE ${TF_DIR}/include)
# What tf.sysconfig.get_compile_flags() says for the 2.21 wheels on Linux; tests/ops/test_kernels_loading.py compares.
# NDEBUG (Release sets it too): the wheels are built with it, and some classes of TensorFlow's headers have other
# members without it.
target_compile_definitions(demb_kernels PRIVATE _GLIBCXX_USE_CXX11_ABI=1 EIGEN_MAX_ALIGN_BYTES=64 NDEBUG)
if(CORE_SOURCES)
  target_link_libraries(demb_kernels PRIVATE demb_core)
endif()
target_link_directories(demb_kernels PRIVATE ${TF_DIR})
target_link_libraries(demb_kernels PRIVATE -l:libtensorflow_framework.so.2)

configure_file(${CMAKE_CURRENT_LIST_DIR}/demb_kernels.json.in _demb_kernels.json @ONLY)
install(TARGETS demb_kernels LIBRARY DESTINATION distributed_embeddings/ops)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_demb_kernels.json DESTINATION distributed_embeddings/ops)
