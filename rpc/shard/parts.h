// Parts: what folders above keep with a runtime, or with one of its shards, which know nothing of
// it.
//
// A part is made when it is first asked for, once, and is destroyed with its owner. Any thread may
// ask; the part's class says who may use it. Bounded by the classes of parts.
//
//   Connections& here = shard.parts().Get<Connections>(shard);

#ifndef VERBENA_RPC_SHARD_PARTS_H_
#define VERBENA_RPC_SHARD_PARTS_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace verbena::internal {

class Part {
 public:
  virtual ~Part() = default;
  // The owner ends: nothing that the part refers to is used any more.
  virtual void Clear() {}
};

class Parts {
 public:
  Parts() = default;
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // The part of class P, which is made of `arguments` if there is none yet.
  template <typename P, typename... Arguments>
  P& Get(Arguments&... arguments) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, part] : parts_) {
      if (key == &key_of<P>) return static_cast<P&>(*part);
    }
    auto made = std::make_unique<P>(arguments...);
    P& part = *made;
    parts_.emplace_back(&key_of<P>, std::move(made));
    return part;
  }

  // On the thread that ends the owner. A part may ask for others meanwhile.
  void Clear() {
    std::vector<Part*> all;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [key, part] : parts_) all.push_back(part.get());
    }
    for (Part* part : all) part->Clear();
  }

 private:
  // Its address tells the class. Not const: equal constants may share one.
  template <typename P>
  static inline char key_of = 0;

  std::mutex mutex_;
  std::vector<std::pair<const char*, std::unique_ptr<Part>>> parts_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_PARTS_H_
