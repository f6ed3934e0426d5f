// Devices: which there are, and opening them.

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/errors.h"
#include "verbena/transport/preload/preloaded_devices.h"
#include "verbena/transport/preload/real_library.h"

#undef ibv_get_device_list

namespace verbena::internal::preload {
namespace {

// Lists that the program holds, and libibverbs' own list that each includes, or null.
struct Lists {
  std::mutex mutex;
  std::unordered_map<ibv_device**, ibv_device**> real_of;
};

Lists& Handed() {
  static Lists* lists = new Lists;
  return *lists;
}

}  // namespace
}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  preload::PreloadedDevices& soft = preload::PreloadedDevices::Get();
  int real_count = 0;
  ibv_device** real =
      preload::CallReal(&::ibv_get_device_list, "ibv_get_device_list", nullptr, &real_count);
  if (real == nullptr) real_count = 0;
  const int total = soft.size() + real_count;
  auto** list = static_cast<ibv_device**>(calloc(static_cast<size_t>(total) + 1, sizeof(*real)));
  if (list == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  for (int i = 0; i < soft.size(); ++i) list[i] = soft.at(i);
  for (int i = 0; i < real_count; ++i) list[soft.size() + i] = real[i];
  if (count != nullptr) *count = total;
  std::lock_guard<std::mutex> lock(preload::Handed().mutex);
  preload::Handed().real_of[list] = real;
  errno = 0;
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  ibv_device** real = nullptr;
  {
    std::lock_guard<std::mutex> lock(preload::Handed().mutex);
    auto found = preload::Handed().real_of.find(list);
    if (found == preload::Handed().real_of.end()) return;
    real = found->second;
    preload::Handed().real_of.erase(found);
  }
  if (real != nullptr) {
    preload::CallRealVoid(&::ibv_free_device_list, "ibv_free_device_list", real);
  }
  free(static_cast<void*>(list));
}

__be64 ibv_get_device_guid(ibv_device* device) {
  const int index = preload::PreloadedDevices::Get().IndexOf(device);
  if (index >= 0) return preload::PreloadedDevices::GuidOf(index);
  return preload::CallReal(&::ibv_get_device_guid, "ibv_get_device_guid", 0, device);
}

int ibv_get_device_index(ibv_device* device) {
  const int index = preload::PreloadedDevices::Get().IndexOf(device);
  if (index >= 0) return index;
  return preload::CallReal(&::ibv_get_device_index, "ibv_get_device_index", -1, device);
}

ibv_context* ibv_open_device(ibv_device* device) {
  if (preload::PreloadedDevices::Get().IndexOf(device) < 0) {
    return preload::CallReal(&::ibv_open_device, "ibv_open_device", nullptr, device);
  }
  absl::StatusOr<preload::Context*> context = preload::Context::Open(device);
  if (context.ok()) return (*context)->visible();
  std::fprintf(stderr, "verbena soft device: %s is not opened: %s\n", device->name,
               std::string(context.status().message()).c_str());
  preload::SetErrno(context.status());
  return nullptr;
}

int ibv_close_device(ibv_context* visible) {
  auto& registry = preload::Registry::Get();
  void* context = registry.BeginDestroying(preload::Kind::kContext, visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_close_device, "ibv_close_device", -1, visible);
  }
  preload::Context::Close(static_cast<preload::Context*>(context));
  return 0;
}

ibv_context* ibv_import_device(int cmd_fd) {
  ibv_context* context =
      preload::CallReal(&::ibv_import_device, "ibv_import_device", nullptr, cmd_fd);
  if (context == nullptr) preload::SetErrno(EOPNOTSUPP);
  return context;
}

}  // extern "C"
