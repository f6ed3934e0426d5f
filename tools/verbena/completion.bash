# Completion of the command verbena for bash: its commands, their options, and files.

_verbena() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  local server="--deadline --device --help"
  local options
  if [ "$COMP_CWORD" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "call list describe health bench stats top doctor selftest help --help --version" -- "$word")
    return
  fi
  case $before in
    --payload | --payload-out)
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
      ;;
  esac
  case ${COMP_WORDS[1]} in
    call)
      options="$server --metadata --payload --payload-out --wait --pretty --defaults --verbose"
      if [[ $word = @* ]]; then
        mapfile -t COMPREPLY < <(compgen -P @ -f -- "${word#@}")
        return
      fi
      ;;
    list) options="$server --methods" ;;
    describe | health) options=$server ;;
    stats) options="--metrics --help" ;;
    top) options="--count --help" ;;
    bench) options="$server --rate --seconds --in-flight" ;;
    *) options=--help ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
}

complete -o default -F _verbena verbena
