# Flags and the three functions that every folder uses: tq_library, tq_test, tq_bench.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these it would take no object that was compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()

# find_package that names the Debian package when it fails.
macro(tq_find_package name apt_package)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${name} was not found. On Debian: apt-get install ${apt_package}")
  endif()
endmacro()

tq_find_package(hwy libhwy-dev 1.0.3)
tq_find_package(nlohmann_json nlohmann-json3-dev 3.11)
find_path(TQ_XXHASH_INCLUDE xxhash.h)
if(NOT TQ_XXHASH_INCLUDE)
  message(FATAL_ERROR "xxhash.h was not found. On Debian: apt-get install libxxhash-dev")
endif()

# Our own code only. No -march=native (Highway picks the instruction set at run time), no
# -ffast-math (NaN and -inf carry meaning), and no contraction: the reference and the SIMD paths
# round alike only if a*b+c is fused exactly where the source says so.
add_library(tq_flags INTERFACE)
# 2810: nvcc says falsely that an assigned Status is ignored. -fmad=false: as for the other paths,
# kernels fuse where the source says so.
target_compile_options(tq_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-fmad=false;-diag-suppress=2810;-Xcompiler=-Wall>")
target_include_directories(tq_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # v2 = SSE4.2: removes Highway's SCALAR target, on which several operations do not exist.
  target_compile_options(tq_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v2>)
endif()
if(TURBOQUANT_SANITIZE)
  set(tq_sanitize_flags -fsanitize=${TURBOQUANT_SANITIZE} -fno-omit-frame-pointer
                        -fno-sanitize-recover=all)
  target_compile_options(tq_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${tq_sanitize_flags}>")
  target_link_options(tq_flags INTERFACE ${tq_sanitize_flags})
endif()

# CUDA is an option of the same library: device_cuda.cc and *_cuda.cu, or device_none.cc.
set(tq_device_source device_none.cc)
if(TURBOQUANT_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    # 9.0a has Hopper's own instructions; the PTX of 8.0 serves cards that are newer than both.
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real CACHE STRING "Compute capabilities to build for")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 does not know that nvcc has these.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(tq_device_source device_cuda.cc)
  find_path(TQ_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT TQ_CUBLASLT_INCLUDE)
    message(STATUS "cublasLt.h was not found: no products of float weights on CUDA devices. "
                   "NVIDIA's package: libcublas-dev of the CUDA toolkit")
  endif()
endif()

# The include check runs once per build: an edge that architecture does not allow fails it.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_custom_target(check_includes ALL
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/check_includes.py ${PROJECT_SOURCE_DIR}
  COMMENT "Checking who includes whom")

# tq_library(folder SOURCES ... DEPS folders... LINK external targets...): target tq_<folder>.
function(tq_library folder)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;LINK" ${ARGN})
  list(TRANSFORM arg_DEPS PREPEND tq_)
  add_library(tq_${folder} STATIC ${arg_SOURCES})
  add_library(TurboQuant::${folder} ALIAS tq_${folder})
  set_target_properties(tq_${folder} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # BUILD_INTERFACE: who uses the installed library keeps their own warnings and instruction sets.
  target_link_libraries(tq_${folder} PUBLIC $<BUILD_INTERFACE:tq_flags> ${arg_DEPS} ${arg_LINK})
endfunction()

# Code whose speed nobody waits for is compiled faster: Release's -O3 takes twice as long. At -O1,
# and with precompiled headers, g++ 12 sees bounds of strings broken that are not.
set(tq_fast_to_compile "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1;-Wno-array-bounds>")

# tq_precompile(target HEADERS...): for targets of many files that all read large headers.
function(tq_precompile target)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>" OUTPUT_VARIABLE headers)
  target_precompile_headers(${target} PRIVATE ${headers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess;-Wno-array-bounds>")
  endif()
endfunction()

# tq_test(folder SOURCES ... LINK ...): one GoogleTest binary per folder, <folder>_test.
function(tq_test folder)
  if(NOT TURBOQUANT_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${folder}_test ${arg_SOURCES})
  target_compile_definitions(${folder}_test PRIVATE
    TQ_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TQ_DATA_DIR="${TQ_DATA_DIR}")
  target_compile_options(${folder}_test PRIVATE ${tq_fast_to_compile})
  target_link_libraries(${folder}_test PRIVATE tq_${folder} GTest::gtest_main ${arg_LINK})
  gtest_discover_tests(${folder}_test TEST_PREFIX "${folder}." DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 900)
endfunction()

# Where quickstart and check put the model and the texts; tests that need them skip without.
set(TQ_DATA_DIR "${PROJECT_SOURCE_DIR}/.cache" CACHE PATH "Folder of fetched models and texts")
