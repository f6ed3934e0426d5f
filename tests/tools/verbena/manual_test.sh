#!/usr/bin/env bash
# The man page and the completion name each command of `verbena`, and each option of it.
set -euo pipefail

verbena=tools/verbena/verbena
options_of() {
  "$verbena" "$1" --help | grep -oE -- '^ +(-[a-z],)?--[a-z-]+' | grep -oE -- '--[a-z-]+' | grep -vx -- --help
}
page=$(sed 's/\\//g' tools/verbena/verbena.1)
# shellcheck source=/dev/null
source tools/verbena/completion.bash
completed() {
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _verbena
  printf '%s\n' "${COMPREPLY[@]}"
}

commands=$(completed verbena "" | grep -vx -- '--.*')
for command in call list describe health bench stats top doctor selftest help; do
  grep -qx "$command" <<<"$commands"
  grep -q "verbena $command" <<<"${page//f[BIR]/}"
done
for command in call list describe health bench stats top; do
  found=0
  while read -r option; do
    found=$((found + 1))
    grep -qF -- "$option" <<<"$page" || { echo "verbena.1 lacks $option of $command"; exit 1; }
    grep -qx -- "$option" <<<"$(completed verbena "$command" "")" || { echo "no completion of $option of $command"; exit 1; }
  done < <(options_of "$command")
  [ "$found" -ge 1 ] || { echo "$command --help shows no options"; exit 1; }
done
