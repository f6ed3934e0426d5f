# Which compilers are taken, and the flags of Verbena's own sources.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  message(FATAL_ERROR
    "gcc ${CMAKE_CXX_COMPILER_VERSION} miscompiles coroutines (it destroys awaited temporaries twice). "
    "Take clang 19 or gcc 14: -DCMAKE_CXX_COMPILER=clang++-19 or g++-14, in a new build directory.")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 17)
  message(FATAL_ERROR
    "clang ${CMAKE_CXX_COMPILER_VERSION} is too old. "
    "Take clang 19 or gcc 14: -DCMAKE_CXX_COMPILER=clang++-19 or g++-14, in a new build directory.")
elseif(NOT "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" MATCHES "^(Clang 19|GNU 1[34])\\.")
  message(WARNING
    "Verbena ${PROJECT_VERSION} is built and tested with clang 19, gcc 13 and gcc 14; no test runs with "
    "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}. "
    "docs/install.md says which versions were run.")
endif()

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()

# clang aligns frames of coroutines as their variables need; gcc hands one coroutine over to another
# by a tail call with -O1 and -Og, too (transport/coro/task.h).
set(VERBENA_COROUTINE_FLAGS "$<$<CXX_COMPILER_ID:Clang>:-fcoro-aligned-allocation>"
                            "$<$<CXX_COMPILER_ID:GNU>:-foptimize-sibling-calls>")

# A call reads thread-local variables a dozen times. Through __tls_get_addr each would take 12
# instructions more, through a descriptor 4. arm64 has descriptors by default.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mtls-dialect=gnu2 VERBENA_HAS_TLSDESC)

include(CheckLinkerFlag)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  check_linker_flag(CXX -fuse-ld=lld VERBENA_HAS_LLD)
endif()
if(VERBENA_LTO AND NOT VERBENA_HAS_LLD)
  message(STATUS "libverbena.so is not optimised as a whole: that needs clang and lld")
endif()

# Compiling takes up to 1.5 GB a file, linking with optimisation 2 GB.
if(PROJECT_IS_TOP_LEVEL AND CMAKE_GENERATOR MATCHES "^Ninja")
  cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
  math(EXPR jobs "${memory_mb} / 2048")
  if(jobs LESS 1)
    set(jobs 1)
  endif()
  set_property(GLOBAL APPEND PROPERTY JOB_POOLS verbena_memory=${jobs})
endif()

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(VERBENA_CCACHE ccache)
  if(VERBENA_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${VERBENA_CCACHE}")
  endif()
endif()

# Gives `target` the flags of Verbena's own sources.
function(verbena_set_flags target)
  # gcc takes a name of a source that is compiled with others for one of a header.
  target_compile_options(${target} PRIVATE -Wall -Wextra
                         "$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>"
                         "$<$<CONFIG:Release,RelWithDebInfo>:-O2;-fno-plt>")
  # A check that fails prints its file as it lies in the sources, not on the machine that built it.
  # The last root that fits counts, and the build directory may lie among the sources.
  foreach(root IN ITEMS "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/include/verbena"
                        "${PROJECT_BINARY_DIR}/generated")
    target_compile_options(${target} PRIVATE "-fmacro-prefix-map=${root}/=")
  endforeach()
  target_compile_definitions(${target} PRIVATE BOOST_ERROR_CODE_HEADER_ONLY BOOST_ASIO_NO_DEPRECATED)
  target_include_directories(${target} PRIVATE "${PROJECT_BINARY_DIR}/include"
                                               "${PROJECT_BINARY_DIR}/generated")
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON
    UNITY_BUILD ON
    UNITY_BUILD_MODE GROUP
    VISIBILITY_INLINES_HIDDEN ON)
  if(PROJECT_IS_TOP_LEVEL AND CMAKE_GENERATOR MATCHES "^Ninja")
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE verbena_memory
                                               JOB_POOL_LINK verbena_memory)
  endif()
  if(VERBENA_HAS_LLD)
    target_link_options(${target} PRIVATE -fuse-ld=lld)
  endif()
  if(VERBENA_LTO AND VERBENA_HAS_LLD AND BUILD_SHARED_LIBS)
    set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION_RELEASE ON
                                               INTERPROCEDURAL_OPTIMIZATION_RELWITHDEBINFO ON)
  endif()
  if(BUILD_SHARED_LIBS AND VERBENA_HAS_TLSDESC)
    target_compile_options(${target} PRIVATE -mtls-dialect=gnu2)
  endif()
endfunction()

# Has the shared library `target` export what the version scripts say, and no more. It stays loaded
# after dlclose(): its threads run on, and protobuf knows its messages until the process ends.
function(verbena_export_only target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    return()
  endif()
  foreach(map IN LISTS ARGN)
    target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${map}")
  endforeach()
  target_link_options(${target} PRIVATE LINKER:--as-needed LINKER:-Bsymbolic-functions
                      LINKER:-z,nodelete)
  if(NOT "${CMAKE_CXX_FLAGS}" MATCHES "-fsanitize=")  # the program brings the sanitizer's functions
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
  if(VERBENA_HAS_LLD)
    target_link_options(${target} PRIVATE -fuse-ld=lld)
    if(VERBENA_LTO)
      set(optimised "$<CONFIG:Release,RelWithDebInfo>")
      # More inlining across files than lld's default: 5% of the instructions of a call.
      target_link_options(${target} PRIVATE
                          "$<${optimised}:-flto=thin;LINKER:-mllvm,-inline-threshold=700>")
      if(VERBENA_HAS_TLSDESC)
        target_link_options(${target} PRIVATE "$<${optimised}:LINKER:-mllvm,-enable-tlsdesc>")
      endif()
    endif()
  endif()
endfunction()
