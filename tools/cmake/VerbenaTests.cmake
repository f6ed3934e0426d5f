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
# What the tests of a folder take from another's.
set(support_transport_memory tests/transport/coro/counted_new.cc)

foreach(folder IN ITEMS
        transport/base transport/coro transport/device transport/memory transport/executor
        transport/file transport/connect rpc/call rpc/naming)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
       "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc")
  list(REMOVE_ITEM sources ${only_bazel})
  string(REPLACE "/" "_" group "${folder}")
  set(name test_${group})
  add_executable(${name} ${sources} ${support_${group}})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE Verbena::testing verbena ${VERBENA_PRIVATE_LIBRARIES}
                                        GTest::gmock GTest::gtest_main)
  verbena_set_flags(${name})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h>
                            <verbena/transport/executor/executor.h>)
  gtest_discover_tests(${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" DISCOVERY_MODE PRE_TEST
                       PROPERTIES ENVIRONMENT "VERBENA_DEVICE=soft;TEST_TMPDIR=/tmp")
endforeach()
