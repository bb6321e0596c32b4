# bash completion for dthrottlectl(1)

_dthrottlectl() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      -s|--socket|--timeout) ((i++)) ;;
      -*) ;;
      *) command=${COMP_WORDS[i]}; break ;;
    esac
  done
  case $before in
    -s|--socket|-d|--directory|-k|--key)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return ;;
    -m|--mode)
      mapfile -t COMPREPLY < <(compgen -W 'pessimistic optimistic safe' -- "$word")
      return ;;
    --timeout|-a|--address|-S|--servers|-c|--client|-p|--priority|-t)
      return ;;
  esac
  case $command in
    '')
      mapfile -t COMPREPLY < <(compgen -W '-s --socket -j --json --timeout -h --help -V --version
        help stats metrics show why top penalties refusals rules peers shed capacity indicate leases config forgive reload upgrade lease
        keygen limit candidate sites' -- "$word") ;;
    lease)
      mapfile -t COMPREPLY < <(compgen -W '-S --servers -c --client -m --mode -p --priority -t --timeout -h --help' \
        -- "$word") ;;
    candidate)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -W 'stop clear promote --of --for -k --key --here -h --help' -- "$word"; compgen -f -- "$word") ;;
    limit)
      mapfile -t COMPREPLY < <(compgen -W 'list set rules clear keygen --rule --clear --for -k --key -d --directory -h --help' -- "$word") ;;
    keygen)
      mapfile -t COMPREPLY < <(compgen -W '-d --directory -a --address -h --help' -- "$word") ;;
  esac
}
complete -F _dthrottlectl dthrottlectl
