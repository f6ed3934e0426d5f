#include "verbena/transport/soft/copies_under_way.h"

#include <algorithm>
#include <iterator>

namespace verbena::internal::soft {

namespace {

bool Contains(const std::vector<CopyUnderWay>& copies, const CopyUnderWay& wanted) {
  return std::ranges::any_of(copies, [&](const CopyUnderWay& copy) { return copy.Is(wanted); });
}

}  // namespace

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

void Quiescence::GiveUp(QpIdentity qp) {
  std::lock_guard<std::mutex> lock(mutex_);
  AllOver(given_up_);
  auto found = left_behind_.find(qp);
  if (found == left_behind_.end()) return;
  for (const CopyUnderWay& copy : found->second) {
    if (!Contains(given_up_, copy)) given_up_.push_back(copy);
  }
}

bool Quiescence::GivenUp(QpIdentity qp) {
  std::lock_guard<std::mutex> lock(mutex_);
  AllOver(given_up_);
  auto found = left_behind_.find(qp);
  if (found == left_behind_.end() || AllOver(found->second)) return false;
  return std::ranges::all_of(
      found->second, [this](const CopyUnderWay& copy) { return Contains(given_up_, copy); });
}

void Quiescence::AddCopies(std::vector<CopyUnderWay>& copies) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [_, of_qp] : left_behind_) {
    copies.insert(copies.end(), of_qp.begin(), of_qp.end());
  }
}

}  // namespace verbena::internal::soft
