# Unit tests that need no script, no guest and no other program, one program for each folder. Bazel
# has all tests: ./dev test.

if(BUILD_SHARED_LIBS)
  message(FATAL_ERROR "VERBENA_TESTS looks inside libverbena, which hides that when it is shared: "
                      "add -DBUILD_SHARED_LIBS=OFF")
endif()

find_package(GTest QUIET)
verbena_need("${GTest_FOUND}" "GoogleTest, for VERBENA_TESTS" "libgtest-dev libgmock-dev")
include(GoogleTest)

# Tests of warnings, which have flags of their own.
set(only_bazel tests/transport/coro/lifetime_warnings.cc)
# A precompiled header would include what this test includes with another meaning.
set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/transport/base/check_off_test.cc"
                            PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
# What the tests of a folder take from another's.
set(support_transport_memory tests/transport/coro/counted_new.cc)
# Tests that run on epoll and once more on io_uring, with what they use, and those that need
# io_uring. They skip themselves if the kernel has none.
set(on_both_transport_executor fake_device host_driven_test sleep_test waiter_test)
set(on_both_transport_file file_lifetime_test file_names_test file_test)
set(on_io_uring_transport_file ring_backend_test)

# What tests of several folders share.
add_library(verbena_test_support STATIC "${PROJECT_SOURCE_DIR}/tests/support/manual_scheduler.cc")
target_include_directories(verbena_test_support PUBLIC "${PROJECT_SOURCE_DIR}")
target_link_libraries(verbena_test_support PUBLIC verbena)
verbena_set_flags(verbena_test_support)

# Adds the test program `name` of SOURCES. CASE_SUFFIX: what the names of its cases end in.
function(verbena_add_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "CASE_SUFFIX" "SOURCES")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE Verbena::testing verbena_test_support verbena
                                        ${VERBENA_PRIVATE_LIBRARIES}
                                        GTest::gmock GTest::gtest_main)
  verbena_set_flags(${name})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h>
                            <verbena/transport/executor/executor.h>)
  # As under Bazel, where no other program has files of the same names.
  set(tmpdir "${PROJECT_BINARY_DIR}/test_tmp/${name}")
  file(MAKE_DIRECTORY "${tmpdir}")
  gtest_discover_tests(${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" DISCOVERY_MODE PRE_TEST
                       TEST_SUFFIX "${arg_CASE_SUFFIX}" DISCOVERY_TIMEOUT 60
                       # Of two values of one property, CMake would take the second for a property.
                       PROPERTIES ENVIRONMENT VERBENA_DEVICE=soft
                                  ENVIRONMENT_MODIFICATION "TEST_TMPDIR=set:${tmpdir}")
endfunction()

foreach(folder IN ITEMS
        transport/base transport/coro transport/device transport/memory transport/executor
        transport/file transport/connect rpc/call rpc/naming)
  string(REPLACE "/" "_" group "${folder}")
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
       "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc")
  foreach(list IN ITEMS on_both on_io_uring)
    set(${list} ${${list}_${group}})
    list(TRANSFORM ${list} PREPEND "tests/${folder}/")
    list(TRANSFORM ${list} APPEND ".cc")
  endforeach()
  list(REMOVE_ITEM sources ${only_bazel} ${on_io_uring})
  verbena_add_test_program(test_${group} SOURCES ${sources} ${support_${group}})
  if(on_both OR on_io_uring)
    verbena_add_test_program(test_${group}_io_uring CASE_SUFFIX .io_uring
                             SOURCES ${on_both} ${on_io_uring})
    target_compile_definitions(test_${group}_io_uring PRIVATE VERBENA_TEST_IO_URING)
  endif()
endforeach()
