# Tests in C++, which the BUILD files list: tests/cmake/programs.py says which of them CMake has.

if(BUILD_SHARED_LIBS)
  message(FATAL_ERROR "VERBENA_TESTS looks inside libverbena, which hides that when it is shared: "
                      "add -DBUILD_SHARED_LIBS=OFF")
endif()

find_package(GTest QUIET)
verbena_need("${GTest_FOUND}" "GoogleTest, for VERBENA_TESTS" "libgtest-dev libgmock-dev")
find_package(Python3 QUIET COMPONENTS Interpreter)
verbena_need("${Python3_FOUND}" "Python, for VERBENA_TESTS" python3)
include(GoogleTest)

# Sets up `target`, a program or library of tests, which is linked with the libraries in ARGN
# besides Verbena. `joined`: whether its sources are compiled a few at a time, as Bazel compiles them.
function(verbena_set_up_test_code target joined)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${ARGN} Verbena::testing verbena
                                          ${VERBENA_PRIVATE_LIBRARIES}
                                          GTest::gmock GTest::gtest_main)
  verbena_set_flags(${target})
  set_target_properties(${target} PROPERTIES UNITY_BUILD "${joined}" UNITY_BUILD_MODE BATCH
                                             UNITY_BUILD_BATCH_SIZE 8)
  if(joined)
    target_precompile_headers(${target} PRIVATE <gmock/gmock.h> <gtest/gtest.h>
                              <verbena/transport/executor/executor.h>)
  endif()
endfunction()

# Adds the library support_`name` of SOURCES, which programs link whole. JOINED: they are compiled a
# few at a time. LIBRARIES: what it is compiled with besides Verbena.
function(verbena_add_test_support name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "JOINED" "" "SOURCES;LIBRARIES")
  if((NOT VERBENA_ETCD AND "Verbena::etcd" IN_LIST arg_LIBRARIES) OR
     (NOT VERBENA_ADMIN AND "Verbena::admin" IN_LIST arg_LIBRARIES))
    return()
  endif()
  string(REPLACE "/" "_" target "support_${name}")
  list(TRANSFORM arg_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${arg_SOURCES})
  verbena_set_up_test_code(${target} "${arg_JOINED}" ${arg_LIBRARIES})
endfunction()

# Adds the test program test_`name` of SOURCES. JOINED: they are compiled a few at a time. SUPPORT:
# the libraries of verbena_add_test_support() that it has. LIBRARIES and LINK_OPTIONS, DEFINES: what
# it is linked with besides Verbena, and compiled with. ENVIRONMENT: a variable that it has instead
# of VERBENA_DEVICE.
function(verbena_add_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "JOINED" "ENVIRONMENT"
                        "SOURCES;SUPPORT;LIBRARIES;LINK_OPTIONS;DEFINES")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "verbena_add_test_program: there is no argument '${arg_UNPARSED_ARGUMENTS}'")
  elseif(NOT arg_ENVIRONMENT)
    set(arg_ENVIRONMENT VERBENA_DEVICE=soft)
  endif()
  if((NOT VERBENA_ETCD AND "Verbena::etcd" IN_LIST arg_LIBRARIES) OR
     (NOT VERBENA_ADMIN AND "Verbena::admin" IN_LIST arg_LIBRARIES))
    return()
  endif()
  string(REPLACE "/" "_" target "test_${name}")
  list(TRANSFORM arg_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/")
  add_executable(${target} ${arg_SOURCES})
  string(REPLACE "/" "_" support "${arg_SUPPORT}")
  list(TRANSFORM support PREPEND support_)
  verbena_set_up_test_code(${target} "${arg_JOINED}" ${support} ${arg_LIBRARIES})
  target_compile_definitions(${target} PRIVATE ${arg_DEFINES})
  target_link_options(${target} PRIVATE ${arg_LINK_OPTIONS})
  # As under Bazel, where no other program has files of the same names.
  set(tmpdir "${PROJECT_BINARY_DIR}/test_tmp/${target}")
  file(MAKE_DIRECTORY "${tmpdir}")
  gtest_discover_tests(${target} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" DISCOVERY_MODE PRE_TEST
                       TEST_PREFIX "${name}:" DISCOVERY_TIMEOUT 60
                       # Of two values of one property, CMake would take the second for a property.
                       PROPERTIES ENVIRONMENT "${arg_ENVIRONMENT}"
                                  ENVIRONMENT_MODIFICATION "TEST_TMPDIR=set:${tmpdir}")
endfunction()

# Adds the library of the tests' PROTOS, with mocks of their services.
function(verbena_add_test_protos)
  add_library(verbena_test_protos STATIC)
  verbena_generate(TARGET verbena_test_protos PROTOS ${ARGN} BASE_DIR "${PROJECT_SOURCE_DIR}" MOCKS)
endfunction()

# Read again if a list has changed.
file(GLOB_RECURSE lists CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/BUILD"
     "${PROJECT_SOURCE_DIR}/tests/cmake/*.txt" "${PROJECT_SOURCE_DIR}/tests/cmake/*.py")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${lists})
set(programs "${PROJECT_BINARY_DIR}/test_programs.cmake")
set(options)
if(CMAKE_CROSSCOMPILING)
  set(options --emulated)
endif()
execute_process(COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tests/cmake/programs.py" ${options}
                OUTPUT_FILE "${programs}" COMMAND_ERROR_IS_FATAL ANY)
include("${programs}")
