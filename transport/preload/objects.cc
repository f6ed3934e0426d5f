#include "verbena/transport/preload/objects.h"

namespace verbena::internal::preload {

// Never destroyed: threads of the program may still use it while the process ends.
Registry& Registry::Get() {
  static Registry* registry = new Registry;
  return *registry;
}

void Registry::Add(Kind kind, const void* handle, void* object, Context* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[handle] = {.kind = kind, .object = object, .owner = owner, .being_destroyed = false};
}

void* Registry::Find(Kind kind, const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(handle);
  return found != entries_.end() && found->second.kind == kind ? found->second.object : nullptr;
}

void* Registry::BeginDestroying(Kind kind, const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(handle);
  if (found == entries_.end() || found->second.kind != kind || found->second.being_destroyed) {
    return nullptr;
  }
  found->second.being_destroyed = true;
  return found->second.object;
}

void Registry::EndDestroying(const void* handle, bool destroyed) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (destroyed) {
    entries_.erase(handle);
  } else {
    entries_[handle].being_destroyed = false;
  }
}

std::vector<const void*> Registry::HandlesOf(const Context* owner, Kind kind) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<const void*> handles;
  for (const auto& [handle, entry] : entries_) {
    if (entry.owner == owner && entry.kind == kind) handles.push_back(handle);
  }
  return handles;
}

}  // namespace verbena::internal::preload
