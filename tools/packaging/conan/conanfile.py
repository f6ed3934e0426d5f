"""Builds the clone that this recipe lies in, with Conan 2. Nobody has run it yet: see ../README.md."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load
from conan.tools.scm import Version


class VerbenaConan(ConanFile):
    """The library, its generator of code, and with the option etcd also Verbena::etcd."""

    name = "verbena"
    license = "Apache-2.0"
    description = "Asynchronous RPC on C++20 coroutines over RDMA"
    package_type = "library"
    # Conan puts objects in the place of these.  pylint: disable=no-member
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "etcd": [True, False]}
    default_options = {"shared": True, "etcd": True}

    def _clone(self):
        return os.path.abspath(os.path.join(self.recipe_folder, "..", "..", ".."))

    def set_version(self):
        header = load(self, os.path.join(self._clone(), "rpc", "version.h"))
        self.version = ".".join(re.findall(r"#define VERBENA_VERSION_[A-Z]+ (\d+)", header))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md", "docs/*", "*.h", "rpc/*", "transport/*", "proto/*",
                        "tools/cmake/*", "tools/packaging/*", "tools/verbena/*"):
            copy(self, pattern, self._clone(), self.export_sources_folder)

    def requirements(self):
        for reference in ("abseil/[>=20220623]", "protobuf/[>=3.21]"):
            self.requires(reference, transitive_headers=True, transitive_libs=True)
        for reference in ("boost/[>=1.81]", "fmt/[>=9]", "isa-l/[>=2.30]", "liburing/[>=2.3]",
                          "rdma-core/[>=44]"):
            self.requires(reference)
        if self.options.etcd:
            self.requires("openssl/[>=3]")

    def build_requirements(self):
        self.tool_requires("cmake/[>=3.25]")
        self.tool_requires("protobuf/<host_version>")

    def validate(self):
        check_min_cppstd(self, 20)
        oldest = {"clang": "17", "gcc": "13"}.get(str(self.settings.compiler))
        if oldest is None or Version(self.settings.compiler.version) < oldest:
            raise ConanInvalidConfiguration("Verbena needs clang 17 or newer, or gcc 13 or newer")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["VERBENA_ETCD"] = bool(self.options.etcd)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The project's own package has verbena_generate(), which generated ones would not.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "Verbena")]
