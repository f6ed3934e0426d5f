// A program without Verbena that loads the plugins which its arguments name, one after the other,
// and says what becomes of each.

#include <dlfcn.h>

#include <cstdlib>
#include <iostream>

int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    void* const plugin = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) return std::cerr << dlerror() << std::endl, 1;
    const auto plug = reinterpret_cast<const char* (*)()>(dlsym(plugin, "Plug"));
    std::cout << names[i] << " " << plug() << std::endl;
  }
  // Plugins that are never unloaded end with the process.
  std::_Exit(0);
}
