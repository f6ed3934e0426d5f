#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/objects.h"

#undef ibv_get_device_list

#undef ibv_query_port

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

constexpr uint16_t kDefaultPkey = 0xffff;

int QueryPort(ibv_context* visible, uint8_t port, ibv_port_attr* attributes, size_t bytes) {
  auto* context = Alive<Context>(visible);
  if (context == nullptr || attributes == nullptr) return SetErrno(EINVAL);
  absl::StatusOr<ibv_port_attr> answer = context->QueryPort(port);
  if (!answer.ok()) return SetErrno(answer.status());
  std::memset(attributes, 0, bytes);
  std::memcpy(attributes, &*answer, std::min(bytes, sizeof(*answer)));
  return 0;
}

int QueryDeviceEx(ibv_context* visible, const ibv_query_device_ex_input* input,
                  ibv_device_attr_ex* attributes, size_t bytes) {
  auto* context = Alive<Context>(visible);
  if (context == nullptr || attributes == nullptr || (input != nullptr && input->comp_mask != 0) ||
      bytes < sizeof(attributes->orig_attr)) {
    return SetErrno(EINVAL);
  }
  ibv_device_attr_ex answer{};
  answer.orig_attr = context->attributes();
  answer.phys_port_cnt_ex = answer.orig_attr.phys_port_cnt;
  answer.device_cap_flags_ex = answer.orig_attr.device_cap_flags;
  std::memset(attributes, 0, bytes);
  std::memcpy(attributes, &answer, std::min(bytes, sizeof(answer)));
  return 0;
}

// 0, or an errno.
int QueryGidEntry(Context& context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                  size_t bytes) {
  if (port > 0xff || index > 0xffff) return SetErrno(EINVAL);
  absl::StatusOr<ibv_gid> gid =
      context.device().QueryGid(static_cast<uint8_t>(port), static_cast<int>(index));
  if (!gid.ok()) return SetErrno(index == 0 && port == 1 ? EIO : ENODATA);
  const ibv_gid_entry answer{.gid = *gid,
                             .gid_index = index,
                             .port_num = port,
                             .gid_type = IBV_GID_TYPE_IB,
                             .ndev_ifindex = 0};
  std::memset(entry, 0, bytes);
  std::memcpy(entry, &answer, std::min(bytes, sizeof(answer)));
  return 0;
}

// The context of an object that an event may concern; null for what is not alive.
Context* ContextOfElement(const void* handle) {
  if (auto* cq = Alive<VisibleCq>(handle); cq != nullptr) return Context::From(cq->context);
  if (auto* srq = Alive<VisibleSrq>(handle); srq != nullptr) return Context::From(srq->context);
  if (auto* qp = Alive<VisibleQp>(handle); qp != nullptr) return Context::From(qp->qp_base.context);
  return nullptr;
}

constexpr char kNoUd[] =
    "address handles and multicast belong to queue pairs of type UD, which are not supported";

template <typename T>
bool IsOurs(const void* handle) {
  return Alive<T>(handle) != nullptr;
}

}  // namespace

// Questions about a device and its port.

void FillQueryCalls(verbs_context& context) {
  context.query_port = QueryPort;
  context.query_device_ex = QueryDeviceEx;
}

}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

// Devices: which there are, and opening them.

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

int ibv_query_device(ibv_context* visible, ibv_device_attr* attributes) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_query_device, "ibv_query_device", EINVAL, visible, attributes);
  }
  if (attributes == nullptr) return preload::SetErrno(EINVAL);
  *attributes = context->attributes();
  return 0;
}

// Programs that were built before the struct grew get the part of it that they know.
int ibv_query_port(ibv_context* visible, uint8_t port, _compat_ibv_port_attr* attributes) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&::ibv_query_port, "ibv_query_port", EINVAL, visible, port,
                             attributes);
  }
  constexpr size_t kOldBytes = offsetof(ibv_port_attr, port_cap_flags2);
  return preload::QueryPort(visible, port, reinterpret_cast<ibv_port_attr*>(attributes), kOldBytes);
}

int ibv_query_gid(ibv_context* visible, uint8_t port, int index, ibv_gid* gid) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_query_gid, "ibv_query_gid", -1, visible, port, index, gid);
  }
  absl::StatusOr<ibv_gid> answer = context->device().QueryGid(port, index);
  if (answer.ok() && gid != nullptr) {
    *gid = *answer;
    return 0;
  }
  preload::SetErrno(EINVAL);
  return -1;
}

int _ibv_query_gid_ex(ibv_context* visible, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t bytes) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::_ibv_query_gid_ex, "_ibv_query_gid_ex", EINVAL, visible, port,
                             index, entry, flags, bytes);
  }
  if (flags != 0 || entry == nullptr || port != 1) return preload::SetErrno(EINVAL);
  return preload::QueryGidEntry(*context, port, index, entry, bytes);
}

ssize_t _ibv_query_gid_table(ibv_context* visible, ibv_gid_entry* entries, size_t room,
                             uint32_t flags, size_t bytes) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::_ibv_query_gid_table, "_ibv_query_gid_table", -EINVAL, visible,
                             entries, room, flags, bytes);
  }
  if (flags != 0 || entries == nullptr || room == 0) return -preload::SetErrno(EINVAL);
  const int error = preload::QueryGidEntry(*context, 1, 0, entries, bytes);
  return error == 0 ? 1 : -error;
}

// libibverbs' own, for its own programs: no header declares it. `type` is 0 for InfiniBand.
int ibv_query_gid_type(ibv_context* visible, uint8_t port, unsigned index, int* type) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&ibv_query_gid_type, "ibv_query_gid_type", -1, visible, port, index,
                             type);
  }
  if (port == 1 && index == 0 && type != nullptr) {
    *type = 0;
    return 0;
  }
  preload::SetErrno(EINVAL);
  return -1;
}

int ibv_query_pkey(ibv_context* visible, uint8_t port, int index, __be16* pkey) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&::ibv_query_pkey, "ibv_query_pkey", -1, visible, port, index, pkey);
  }
  if (port == 1 && index == 0 && pkey != nullptr) {
    *pkey = htons(preload::kDefaultPkey);
    return 0;
  }
  preload::SetErrno(EINVAL);
  return -1;
}

int ibv_get_pkey_index(ibv_context* visible, uint8_t port, __be16 pkey) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&::ibv_get_pkey_index, "ibv_get_pkey_index", -1, visible, port, pkey);
  }
  if (port == 1 && pkey == htons(preload::kDefaultPkey)) return 0;
  preload::SetErrno(EINVAL);
  return -1;
}

}  // extern "C"

// Asynchronous events.

extern "C" {

int ibv_get_async_event(ibv_context* visible, ibv_async_event* event) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_get_async_event, "ibv_get_async_event", -1, visible, event);
  }
  do {
    const auto taken = context->events().Take();
    if (!taken.has_value()) continue;
    event->event_type = taken->type;
    // All members of the union that the device uses are pointers.
    event->element.qp = static_cast<ibv_qp*>(taken->element);
    return 0;
  } while (preload::AwaitReadable(visible->async_fd));
  return -1;
}

void ibv_ack_async_event(ibv_async_event* event) {
  preload::Context* context = preload::ContextOfElement(event->element.qp);
  if (context != nullptr) {
    context->events().Acknowledge(event->element.qp, 1);
    return;
  }
  preload::CallRealVoid(&::ibv_ack_async_event, "ibv_ack_async_event", event);
}

}  // extern "C"

// Calls that the soft device cannot serve: address handles and multicast (of UD), objects that
// another process shares out, and options of connections.

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  if (!preload::IsOurs<preload::VisibleDomain>(pd)) {
    return preload::CallReal(&::ibv_create_ah, "ibv_create_ah", nullptr, pd, attributes);
  }
  preload::Refuse(preload::kNoUd);
  return nullptr;
}

int ibv_destroy_ah(ibv_ah* ah) {
  return preload::CallReal(&::ibv_destroy_ah, "ibv_destroy_ah", EINVAL, ah);
}

int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                        ibv_ah_attr* attributes) {
  if (!preload::IsOurs<preload::Context>(context)) {
    return preload::CallReal(&::ibv_init_ah_from_wc, "ibv_init_ah_from_wc", -1, context, port, wc,
                             grh, attributes);
  }
  preload::Refuse(preload::kNoUd);
  return -1;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
  if (!preload::IsOurs<preload::VisibleDomain>(pd)) {
    return preload::CallReal(&::ibv_create_ah_from_wc, "ibv_create_ah_from_wc", nullptr, pd, wc,
                             grh, port);
  }
  preload::Refuse(preload::kNoUd);
  return nullptr;
}

int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::Refuse(preload::kNoUd);
  return preload::CallReal(&::ibv_attach_mcast, "ibv_attach_mcast", EINVAL, qp, gid, lid);
}

int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::Refuse(preload::kNoUd);
  return preload::CallReal(&::ibv_detach_mcast, "ibv_detach_mcast", EINVAL, qp, gid, lid);
}

int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attributes, uint8_t* mac,
                                uint16_t* vlan) {
  if (preload::IsOurs<preload::Context>(context)) return preload::SetErrno(EOPNOTSUPP);
  return preload::CallReal(&::ibv_resolve_eth_l2_from_gid, "ibv_resolve_eth_l2_from_gid", EINVAL,
                           context, attributes, mac, vlan);
}

ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) {
  if (!preload::IsOurs<preload::Context>(context)) {
    return preload::CallReal(&::ibv_import_pd, "ibv_import_pd", nullptr, context, handle);
  }
  preload::SetErrno(EOPNOTSUPP);
  return nullptr;
}

void ibv_unimport_pd(ibv_pd* pd) {
  if (preload::IsOurs<preload::VisibleDomain>(pd)) return;
  preload::CallRealVoid(&::ibv_unimport_pd, "ibv_unimport_pd", pd);
}

ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t handle) {
  if (!preload::IsOurs<preload::VisibleDomain>(pd)) {
    return preload::CallReal(&::ibv_import_mr, "ibv_import_mr", nullptr, pd, handle);
  }
  preload::SetErrno(EOPNOTSUPP);
  return nullptr;
}

void ibv_unimport_mr(ibv_mr* mr) {
  if (preload::IsOurs<preload::VisibleRegion>(mr)) return;
  preload::CallRealVoid(&::ibv_unimport_mr, "ibv_unimport_mr", mr);
}

ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) {
  if (!preload::IsOurs<preload::Context>(context)) {
    return preload::CallReal(&::ibv_import_dm, "ibv_import_dm", nullptr, context, handle);
  }
  preload::SetErrno(EOPNOTSUPP);
  return nullptr;
}

void ibv_unimport_dm(ibv_dm* dm) {
  preload::CallRealVoid(&::ibv_unimport_dm, "ibv_unimport_dm", dm);
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::SetErrno(EOPNOTSUPP);
  return preload::CallReal(&::ibv_set_ece, "ibv_set_ece", EINVAL, qp, ece);
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::SetErrno(EOPNOTSUPP);
  return preload::CallReal(&::ibv_query_ece, "ibv_query_ece", EINVAL, qp, ece);
}

}  // extern "C"
