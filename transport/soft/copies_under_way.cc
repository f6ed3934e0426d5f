#include "verbena/transport/soft/copies_under_way.h"

#include <iterator>

namespace verbena::internal::soft {

bool AllOver(std::vector<CopyUnderWay>& copies) {
  std::erase_if(copies, [](const CopyUnderWay& copy) { return copy.over(); });
  return copies.empty();
}

void Quiescence::Enter(QpIdentity qp) {
  std::lock_guard<std::mutex> lock(mutex_);
  in_service_.insert(qp);
}

void Quiescence::Leave(QpIdentity qp, std::vector<CopyUnderWay> copies) {
  std::lock_guard<std::mutex> lock(mutex_);
  in_service_.erase(qp);
  if (copies.empty()) return;
  // Drops copies that are over and that nobody ever asked about.
  for (auto each = left_behind_.begin(); each != left_behind_.end();) {
    each = AllOver(each->second) ? left_behind_.erase(each) : std::next(each);
  }
  std::vector<CopyUnderWay>& of_qp = left_behind_[qp];
  of_qp.insert(of_qp.end(), copies.begin(), copies.end());
}

bool Quiescence::Quiesced(QpIdentity qp) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (in_service_.contains(qp)) return false;
  auto found = left_behind_.find(qp);
  if (found == left_behind_.end()) return true;
  if (!AllOver(found->second)) return false;
  left_behind_.erase(found);
  return true;
}

void Quiescence::AddCopies(std::vector<CopyUnderWay>& copies) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [_, of_qp] : left_behind_) {
    copies.insert(copies.end(), of_qp.begin(), of_qp.end());
  }
}

}  // namespace verbena::internal::soft
