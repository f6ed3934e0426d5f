// LettersApart: how far a wrong word is from a right one, for errors that name the nearest.
//
//   LettersApart("lnk", "link") == 1

#ifndef VERBENA_TRANSPORT_BASE_LETTERS_APART_H_
#define VERBENA_TRANSPORT_BASE_LETTERS_APART_H_

#include <cstddef>
#include <string_view>

namespace verbena::internal {

// How many letters to insert, take out or change, to make `to` of `from` (Levenshtein's distance,
// by Wagner and Fischer's algorithm). Takes time of the product of their lengths: bound what peers
// send.
size_t LettersApart(std::string_view from, std::string_view to);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_LETTERS_APART_H_
