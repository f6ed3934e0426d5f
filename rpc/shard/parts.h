// Parts: objects that folders above keep with a runtime or with a shard, which know only Part.
//
// Get() makes a part when it is first asked for. The owner destroys it. Any thread may call Get();
// each class of part says on which threads it may be used. A part's constructor must not call Get()
// of the same Parts. There is one part of a class, so classes bound them.
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
  // A shard ends: drop what refers to it. A runtime calls this of none of its parts.
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
      if (key == &part_class<P>) return static_cast<P&>(*part);
    }
    auto made = std::make_unique<P>(arguments...);
    P& part = *made;
    parts_.emplace_back(&part_class<P>, std::move(made));
    if (cleared_) part.Clear();
    return part;
  }

  // Clears each part, and those that are made later. Call it on the thread that ends the owner. A
  // part's Clear() may call Get() for another part that is there.
  void Clear() {
    std::vector<Part*> all;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cleared_ = true;
      for (const auto& [key, part] : parts_) all.push_back(part.get());
    }
    for (Part* part : all) part->Clear();
  }

 private:
  // Its address stands for the class. Not const: equal constants may share one.
  template <typename P>
  static inline char part_class = 0;

  std::mutex mutex_;
  bool cleared_ = false;
  std::vector<std::pair<const char*, std::unique_ptr<Part>>> parts_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_PARTS_H_
