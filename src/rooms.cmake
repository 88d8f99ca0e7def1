# Compiler settings that every target shares, and the functions that make a room.

# No contraction: products and sums fuse only where the source says std::fma, so that every instruction set computes the
# same bits. No fast math either, whatever CXXFLAGS say or a compiler does by itself: sums keep their order, NaN is looked for,
# and the program keeps subnormal numbers. No errno from sqrt: it vectorises. Clang's -Wconversion has -Wsign-conversion, too.
add_library(offstage_warnings INTERFACE)
add_library(offstage::warnings ALIAS offstage_warnings)
target_compile_options(offstage_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wno-sign-conversion;-fno-fast-math;-ffp-contract=off;-fno-math-errno>")
# A linker's -ffast-math, also as part of -Ofast, which ends with a later -O alone, makes subnormal numbers 0 from the start on.
target_link_options(offstage_warnings INTERFACE "$<$<LINK_LANGUAGE:CXX>:-fno-fast-math;-O3>")
# Sources that are compiled together (CMAKE_UNITY_BUILD) see each other's names.
if(NOT CMAKE_UNITY_BUILD)
  target_compile_options(offstage_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wshadow>")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(offstage_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wshadow=local;-Wno-subobject-linkage>")
endif()
# Warnings are errors with the compiler that the project is tested with; a newer one's stop nobody's build. Those that
# depend on what was inlined are not: GCC 12 has false ones.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
  set(not_errors array-bounds restrict stringop-overflow stringop-overread maybe-uninitialized)
  list(TRANSFORM not_errors PREPEND "-Wno-error=")
  target_compile_options(offstage_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror;${not_errors}>")
endif()
# GCC's collector takes a tenth of its time unless the heap may grow to 512 MiB first: the largest compilation then has
# 0.92 GiB at its peak for 0.76.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
# MPI's C++ bindings are of no use here and their headers warn.
add_compile_definitions(OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

if(OFFSTAGE_SANITIZE)
  # GCC finds memory that may not be initialised in what sanitizers add.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>
                      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${OFFSTAGE_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>
                      $<$<COMPILE_LANGUAGE:CXX>:-D_GLIBCXX_ASSERTIONS>)
  add_link_options(-fsanitize=${OFFSTAGE_SANITIZE})
endif()

# Sets OFFSTAGE_HAVE_CUDA. A macro: enable_language wants the top directory's scope. CMake 3.25 refuses
# CMAKE_CUDA_STANDARD 20, so it is a compile option in offstage_room.
macro(offstage_find_cuda)
  set(OFFSTAGE_HAVE_CUDA OFF)
  if(NOT OFFSTAGE_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      # A100, RTX 30, RTX 40 and L40, H100; and for what follows the newest as PTX, which drivers compile.
      set(CMAKE_CUDA_ARCHITECTURES "80-real;86-real;89-real;90" CACHE STRING "GPU architectures")
    endif()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      find_package(CUDAToolkit REQUIRED)
      if(TARGET CUDA::cublasLt)
        set(OFFSTAGE_HAVE_CUDA ON)
      else()
        set(missing "the CUDA toolkit in ${CUDAToolkit_LIBRARY_DIR} has no cublasLt; install libcublas-dev of its version")
        if(OFFSTAGE_CUDA STREQUAL "ON")
          message(FATAL_ERROR "OFFSTAGE_CUDA=ON, but ${missing}")
        endif()
        message(WARNING "offstage: ${missing}; until then no CUDA sources are compiled")
      endif()
    elseif(OFFSTAGE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "OFFSTAGE_CUDA=ON, but no nvcc was found; set CMAKE_CUDA_COMPILER")
    endif()
  endif()
  message(STATUS "offstage: CUDA sources compiled: ${OFFSTAGE_HAVE_CUDA}")

  # Beside CUDA's own directories those of the system are searched; the library is only noted, as it is loaded at run time.
  set(OFFSTAGE_HAVE_NCCL OFF)
  if(OFFSTAGE_HAVE_CUDA AND NOT OFFSTAGE_NCCL STREQUAL "OFF")
    find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
    set(NCCL_LIBRARY_FILE "")
    if(NCCL_LIBRARY)
      file(REAL_PATH ${NCCL_LIBRARY} NCCL_LIBRARY_FILE)
    endif()
    if(NCCL_INCLUDE)
      set(OFFSTAGE_HAVE_NCCL ON)
    elseif(OFFSTAGE_NCCL STREQUAL "ON")
      message(FATAL_ERROR "OFFSTAGE_NCCL=ON, but no nccl.h was found; set NCCL_INCLUDE")
    endif()
  elseif(OFFSTAGE_NCCL STREQUAL "ON")
    message(FATAL_ERROR "OFFSTAGE_NCCL=ON, but without CUDA there is no NCCL; see OFFSTAGE_CUDA")
  endif()
  message(STATUS "offstage: NCCL: ${OFFSTAGE_HAVE_NCCL}")
  offstage_find_cudnn()
endmacro()

# Sets OFFSTAGE_HAVE_CUDNN. cuDNN's headers come with toolkits, with NVIDIA's packages, or with PyTorch; its frontend's with
# jobs/fetch-headers.sh.
macro(offstage_find_cudnn)
  set(OFFSTAGE_HAVE_CUDNN OFF)
  if(OFFSTAGE_HAVE_CUDA AND NOT OFFSTAGE_CUDNN STREQUAL "OFF")
    execute_process(COMMAND python3 -c "import sys; print(*(path + '/nvidia/cudnn/include' for path in sys.path if path), sep=';', end='')"
      OUTPUT_VARIABLE in_python ERROR_QUIET)
    find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${in_python})
    file(GLOB fetched ${PROJECT_SOURCE_DIR}/.cache/headers/nvidia-cudnn-frontend-*/include)
    if(NOT EXISTS "${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend.h")
      unset(CUDNN_FRONTEND_INCLUDE CACHE)  # .cache may have been removed since it was found
    endif()
    find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${fetched})
    if(CUDNN_INCLUDE AND CUDNN_FRONTEND_INCLUDE)
      set(OFFSTAGE_HAVE_CUDNN ON)
    elseif(OFFSTAGE_CUDNN STREQUAL "ON")
      message(FATAL_ERROR "OFFSTAGE_CUDNN=ON, but cudnn.h is ${CUDNN_INCLUDE} and cudnn_frontend.h is ${CUDNN_FRONTEND_INCLUDE}; "
        "set CUDNN_INCLUDE, and run jobs/fetch-headers.sh or set CUDNN_FRONTEND_INCLUDE")
    endif()
  elseif(OFFSTAGE_CUDNN STREQUAL "ON")
    message(FATAL_ERROR "OFFSTAGE_CUDNN=ON, but without CUDA there is no cuDNN; see OFFSTAGE_CUDA")
  endif()
  message(STATUS "offstage: cuDNN attention: ${OFFSTAGE_HAVE_CUDNN}")
endmacro()

# What most sources include, parsed once: the owner's precompiled header, which targets with the same
# flags reuse. Not beside ccache, which keeps nothing that was compiled with one.
function(offstage_precompile target owner)
  if(NOT OFFSTAGE_PRECOMPILE OR CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# offstage_room(NAME <room> HEADERS <...> [SOURCES <...>] [SIMD <...>] [BF16 <...>] [CUDA <...>]
#               [DEPENDS <lower rooms>] [LINK <external targets>] [LINK_PUBLIC <external targets>])
#
# One static library per room. DEPENDS is PUBLIC because headers name lower rooms' types; LINK is
# PRIVATE so that third-party headers do not spread. Sources are compiled with -O2, which takes a fifth less of the
# compiler's time than the -O3 of what loops over arrays: SIMD sources are compiled three times, with
# OFFSTAGE_SIMD set to baseline, avx2 and avx512 (see base/simd.hpp), BF16 sources twice, with it set to avx512_bf16
# and amx (see kernels/host/bf16_unit.hpp). CUDA sources are compiled
# when nvcc is there. Every header is checked to stand alone: NAME.hpp by NAME.cpp or one called NAME_*.cpp, which
# includes it first (tests/house) and is compiled by itself by tests/campaign.sh alone; those without such a source by the
# target all_verify_interface_header_sets.
function(offstage_room)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;HEADERS;SIMD;BF16;CUDA;DEPENDS;LINK;LINK_PUBLIC")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "offstage_room: unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target offstage_${arg_NAME})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(offstage::${arg_NAME} ALIAS ${target})
  # What includes name begins with the room: "base/error.hpp", "kernels/dispatch.hpp".
  set(includes ${PROJECT_SOURCE_DIR}/src)
  cmake_path(IS_PREFIX includes ${CMAKE_CURRENT_SOURCE_DIR} in_src)
  if(NOT in_src)
    set(includes ${PROJECT_SOURCE_DIR})
  endif()
  set(with_source "")
  set(alone "")
  foreach(header ${arg_HEADERS})
    string(REGEX REPLACE "\\.hpp$" "" stem ${header})
    set(its_sources ${arg_SOURCES} ${arg_SIMD} ${arg_BF16})
    list(FILTER its_sources INCLUDE REGEX "^${stem}(_[^/]*)?\\.cpp$")
    if(its_sources)
      list(APPEND with_source ${header})
    else()
      list(APPEND alone ${header})
    endif()
  endforeach()
  target_sources(${target} PUBLIC
    FILE_SET HEADERS BASE_DIRS ${includes} FILES ${with_source}
    FILE_SET alone TYPE HEADERS BASE_DIRS ${includes} FILES ${alone})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON INTERFACE_HEADER_SETS_TO_VERIFY alone)
  list(TRANSFORM arg_DEPENDS PREPEND "offstage::")
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} ${arg_LINK_PUBLIC}
                                  PRIVATE offstage::warnings ${arg_LINK})
  if(OFFSTAGE_OPENMP)
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  else()
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas>)
  endif()
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-O2>)
  offstage_precompile(${target} offstage_base
    <algorithm> <filesystem> <functional> <map> <optional> <span> <string> <vector> <fmt/format.h>)

  set(flags_baseline "")
  set(flags_avx2 -mavx2 -mfma -mbmi2 -mf16c)
  set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mbmi2 -mprefer-vector-width=512)
  set(flags_avx512_bf16 ${flags_avx512} -mavx512bf16)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
    list(APPEND flags_avx512_bf16 "SHELL:-mllvm -disable-vector-combine")  # Clang 16 crashes in that pass, 19 does not
  endif()
  set(flags_amx ${flags_avx512_bf16} -mamx-tile -mamx-bf16)
  foreach(level baseline avx2 avx512 avx512_bf16 amx)
    set(sources ${arg_SIMD})
    if(level STREQUAL "avx512_bf16" OR level STREQUAL "amx")
      set(sources ${arg_BF16})
    endif()
    if(NOT OFFSTAGE_X86)
      # All levels are the baseline then, and nothing asks for more (base/simd.hpp); there is no bf16 unit.
      set(flags_${level} "")
      if(level STREQUAL "avx512_bf16" OR level STREQUAL "amx")
        set(sources "")
      endif()
    endif()
    if(sources)
      set(object ${target}_${level})
      add_library(${object} OBJECT ${sources})
      set_target_properties(${object} PROPERTIES UNITY_BUILD OFF)
      target_compile_features(${object} PRIVATE cxx_std_20)
      target_include_directories(${object} PRIVATE ${PROJECT_SOURCE_DIR}/src ${includes})
      target_compile_definitions(${object} PRIVATE OFFSTAGE_SIMD=${level} OFFSTAGE_SIMD_${level}=1)
      target_compile_options(${object} PRIVATE ${flags_${level}})
      target_link_libraries(${object} PRIVATE offstage::warnings)
      if(OFFSTAGE_OPENMP)
        target_link_libraries(${object} PRIVATE OpenMP::OpenMP_CXX)
      else()
        target_compile_options(${object} PRIVATE -Wno-unknown-pragmas)
      endif()
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
    endif()
  endforeach()

  if(OFFSTAGE_HAVE_CUDA AND arg_CUDA)
    target_sources(${target} PRIVATE ${arg_CUDA})
    set_source_files_properties(${arg_CUDA} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    list(TRANSFORM arg_CUDA PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE cuda_sources)
    set_property(TARGET ${target} PROPERTY OFFSTAGE_CUDA_SOURCES ${cuda_sources})
    target_link_libraries(${target} PUBLIC CUDA::cudart_static)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
  endif()
  if(OFFSTAGE_HAVE_CUDA)
    target_compile_definitions(${target} PUBLIC OFFSTAGE_HAVE_CUDA=1)
  endif()
endfunction()

# Of test programs: matchers take most of the compiler's time and little of the tests'; the rooms have what counts. -Og
# takes a quarter less of it than -O1. Symbols are for reports of sanitizers; without the rooms' a link takes half the time.
set(test_flags -Og)
set(test_link_flags "")
if(NOT OFFSTAGE_SANITIZE)
  list(APPEND test_flags -g0)
  set(test_link_flags LINKER:--strip-debug)
endif()

# offstage_test(NAME <name> SOURCES <...> ROOMS <...> [LABELS <...>] [RANKS <n>...] [MORE_RANKS <n>...] [TIMEOUT <s>]
#               [THREADS <n>])
#
# One GoogleTest program. With either RANKS it runs once per listed number of ranks under mpirun and must
# bring its own main (tests/mpi_main.cpp); otherwise it runs as a plain process.
# MORE_RANKS have the label more: tests/campaign.sh whole runs them, tests/run.sh alone does not.
# Ranks mostly wait: they count as one processor, or ctest would start them last, when enough are free at once. COST: before
# tests without one.
# THREADS: of OpenMP, 1 unless given. Several wait for each other at the end of each small loop, on a busy
# machine for minutes in all.
function(offstage_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT;THREADS" "SOURCES;ROOMS;LABELS;RANKS;MORE_RANKS;LINK")
  list(TRANSFORM arg_ROOMS PREPEND "offstage::")
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${arg_NAME} PRIVATE ${arg_ROOMS} offstage::warnings GTest::gtest GTest::gmock ${arg_LINK})
  target_compile_options(${arg_NAME} PRIVATE "$<$<CONFIG:RelWithDebInfo>:${test_flags}>")
  target_link_options(${arg_NAME} PRIVATE "$<$<CONFIG:RelWithDebInfo>:${test_link_flags}>")
  if(OFFSTAGE_OPENMP)
    target_link_libraries(${arg_NAME} PRIVATE OpenMP::OpenMP_CXX)
  else()
    target_compile_options(${arg_NAME} PRIVATE -Wno-unknown-pragmas)
  endif()
  offstage_precompile(${arg_NAME} base_test <gmock/gmock.h> <gtest/gtest.h> <filesystem> <fmt/format.h>)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_THREADS)
    set(arg_THREADS 1)
  endif()
  if(arg_RANKS OR arg_MORE_RANKS)
    foreach(ranks ${arg_RANKS} ${arg_MORE_RANKS})
      set(label_more "")
      if(ranks IN_LIST arg_MORE_RANKS)
        set(label_more more)
      endif()
      add_test(NAME ${arg_NAME}.${ranks}ranks
        COMMAND ${PROJECT_SOURCE_DIR}/tests/mpi.sh ${ranks} $<TARGET_FILE:${arg_NAME}>)
      set_tests_properties(${arg_NAME}.${ranks}ranks PROPERTIES
        LABELS "${arg_LABELS};${label_more}" TIMEOUT ${arg_TIMEOUT} COST 20)
    endforeach()
  else()
    target_link_libraries(${arg_NAME} PRIVATE GTest::gtest_main)
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
    set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT "OMP_WAIT_POLICY=passive;OMP_NUM_THREADS=${arg_THREADS}")
  endif()
endfunction()

# offstage_gpu_test(NAME <name> SOURCES <...> ROOMS <...> [TIMEOUT <s>])
#
# Two programs of one source: <name>, of label gpu, and <name>_on_cpu, which runs the same CUDA code here
# (tests/cuda_on_cpu). None where CUDA is not compiled.
function(offstage_gpu_test)
  if(NOT OFFSTAGE_HAVE_CUDA)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT" "SOURCES;ROOMS;LINK")
  set(objects ${arg_NAME}_objects)
  list(TRANSFORM arg_ROOMS PREPEND "offstage::" OUTPUT_VARIABLE rooms)
  add_library(${objects} OBJECT ${arg_SOURCES})
  target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${objects} PRIVATE ${rooms} offstage::warnings GTest::gtest GTest::gmock ${arg_LINK})
  target_compile_options(${objects} PRIVATE "$<$<CONFIG:RelWithDebInfo>:${test_flags}>")
  offstage_test(NAME ${arg_NAME} SOURCES $<TARGET_OBJECTS:${objects}> ROOMS ${arg_ROOMS} LINK ${arg_LINK}
    TIMEOUT ${arg_TIMEOUT} LABELS gpu)
  offstage_test(NAME ${arg_NAME}_on_cpu SOURCES $<TARGET_OBJECTS:${objects}> $<TARGET_OBJECTS:cuda_on_cpu>
    ROOMS ${arg_ROOMS} kernels LINK ${arg_LINK} TIMEOUT ${arg_TIMEOUT})
endfunction()
