#include "verbena/transport/preload/objects.h"

#include "verbena/transport/base/check.h"

namespace verbena::internal::preload {

// Never destroyed: threads of the program may still use it while the process ends.
Registry& Registry::Get() {
  static Registry* registry = new Registry;
  return *registry;
}

void Registry::Add(Kind kind, const void* handle, void* object, Context* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_new =
      entries_.try_emplace(handle, Entry{.kind = kind, .object = object, .owner = owner}).second;
  VERBENA_CHECK(is_new) << "an object is registered where one is alive: " << handle;
}

void* Registry::Find(Kind kind, const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(handle);
  if (found == entries_.end() || found->second.kind != kind || found->second.orphaned) {
    return nullptr;
  }
  return found->second.object;
}

void* Registry::BeginDestroying(Kind kind, const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(handle);
  if (found == entries_.end() || found->second.kind != kind || found->second.orphaned ||
      found->second.being_destroyed) {
    return nullptr;
  }
  found->second.being_destroyed = true;
  return found->second.object;
}

void Registry::EndDestroying(const void* handle, bool destroyed) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(handle);
  VERBENA_CHECK(found != entries_.end() && found->second.being_destroyed)
      << "nobody destroys " << handle;
  if (destroyed) {
    entries_.erase(found);
  } else {
    found->second.being_destroyed = false;
  }
}

void Registry::OrphanObjectsOf(const Context* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, entry] : entries_) entry.orphaned |= entry.owner == owner;
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
