# Toolchain file: builds for arm64 (aarch64-linux-gnu) on another machine, with clang 19 and lld 19.
#
#   cmake -B build -G Ninja -DCMAKE_TOOLCHAIN_FILE=tools/cmake/aarch64-linux-gnu.cmake
#         -DVERBENA_SYSROOT=DIR
#
# VERBENA_SYSROOT holds arm64's headers and libraries. The environment may name it, too. Without it
# the directory that `./dev arm64 --sysroot` printed last is taken. protoc runs on this machine, and so
# does VERBENA_HOST_PLUGIN, a protoc-gen-verbena that verbena_generate() needs. Tests run under
# qemu-aarch64, if that is installed.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

# CMake reads this file again for each of its own test builds, which have their own variables.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES VERBENA_SYSROOT)
if(NOT VERBENA_SYSROOT AND DEFINED ENV{VERBENA_SYSROOT})
  set(VERBENA_SYSROOT "$ENV{VERBENA_SYSROOT}")
elseif(NOT VERBENA_SYSROOT)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(NOT cache)
    set(cache "$ENV{HOME}/.cache")
  endif()
  # The link will lead elsewhere once the list of packages changes; a build keeps what it began with.
  file(REAL_PATH "${cache}/verbena-arm64/sysroot-latest" VERBENA_SYSROOT)
  unset(cache)
endif()
set(VERBENA_SYSROOT "${VERBENA_SYSROOT}" CACHE PATH "Headers and libraries for arm64")
if(NOT EXISTS "${VERBENA_SYSROOT}/usr/include")
  message(FATAL_ERROR
    "VERBENA_SYSROOT is '${VERBENA_SYSROOT}', which holds no usr/include. Name a directory with "
    "arm64's headers and libraries: -DVERBENA_SYSROOT=DIR. ./dev arm64 --sysroot makes one.")
endif()
set(CMAKE_SYSROOT "${VERBENA_SYSROOT}")

foreach(language IN ITEMS C CXX)
  set(CMAKE_${language}_COMPILER_TARGET aarch64-linux-gnu)
endforeach()
if(NOT CMAKE_C_COMPILER)
  set(CMAKE_C_COMPILER clang-19)
endif()
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_CXX_COMPILER clang++-19)
endif()
foreach(kind IN ITEMS EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT -fuse-ld=lld)
endforeach()

# Programs are this machine's, all else is arm64's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(VERBENA_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
mark_as_advanced(VERBENA_QEMU)
if(VERBENA_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${VERBENA_QEMU};-L;${VERBENA_SYSROOT}")
endif()
