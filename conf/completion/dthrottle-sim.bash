# bash completion for dthrottle-sim(1)

_dthrottle_sim() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} options=
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W '-h --help -V --version run compare replay capacity lease' -- "$word")
    return
  fi
  [[ $command == capacity && $before == --csv ]] && before=    # a flag there
  case $before in
    --seed|--seeds|--rows|--hosts|--tag|--top|--minutes|--loss|--delay)
      return ;;
    --spread)
      mapfile -t COMPREPLY < <(compgen -W 'random sticky round-robin' -- "$word")
      return ;;
    --scenario)
      mapfile -t COMPREPLY < <(compgen -W 'one five seven' -- "$word")
      return ;;
    --algorithm)
      mapfile -t COMPREPLY < <(compgen -W 'none proportional_share proportional_scaling fair_share' -- "$word")
      return ;;
    --schemes)
      mapfile -t COMPREPLY < <(compgen -W 'local debit forecast capacity' -- "$word")
      return ;;
    --csv|--measures|--plot|--gnuplot|--rules|-o|--output)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return ;;
  esac
  if [[ $word != -* && -n $word ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
  fi
  case $command in
    run) options='--seed --seeds --rows --csv --measures --plot --gnuplot -h --help' ;;
    compare) options='--seed --seeds --schemes --csv --measures --plot --gnuplot -h --help' ;;
    capacity) options='-o --output --seed --network --loss --delay --csv --svg --png --list --gnuplot -h --help' ;;
    lease) options='--scenario --algorithm --strict --as-documented --seed --seeds --minutes --csv --plot --gnuplot -h --help' ;;
    replay) options='--rules --hosts --tag --spread --seed --top --csv -h --help' ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
}
complete -F _dthrottle_sim dthrottle-sim
