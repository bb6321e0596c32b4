# bash completion for dthrottled(8)

_dthrottled() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  case $before in
    -c|--config|-t|--check)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return ;;
    --handover)
      return ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W '-c --config -t --check --handover -h --help -V --version' -- "$word")
}
complete -F _dthrottled dthrottled
