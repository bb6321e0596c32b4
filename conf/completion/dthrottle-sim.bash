# bash completion for dthrottle-sim(1)

_dthrottle_sim() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} options=
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W '-h --help -V --version run compare replay figure lease' -- "$word")
    return
  fi
  [[ $command == figure && $before == --csv ]] && before=    # a flag there
  case $before in
    --seed|--seeds|--jobs|--rows|--hosts|--tag|--top|--minutes|--alpha|--gain|--load|-N|--nodes|--rounds|--loss|--delay)
      return ;;
    --spread)
      mapfile -t COMPREPLY < <(compgen -W 'random sticky round-robin' -- "$word")
      return ;;
    --scenario)
      mapfile -t COMPREPLY < <(compgen -W 'one two three four five six seven' -- "$word")
      return ;;
    --algorithm)
      mapfile -t COMPREPLY < <(compgen -W 'none static proportional_share proportional_scaling fair_share priority_band' -- "$word")
      return ;;
    --schemes)
      mapfile -t COMPREPLY < <(compgen -W 'local debit forecast capacity grd fps' -- "$word")
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
    run) options='--seed --seeds --jobs --rows --csv --measures --plot --gnuplot -h --help' ;;
    compare) options='--seed --seeds --jobs --schemes --csv --measures --plot --gnuplot -h --help' ;;
    figure) options='-o --output --seed --alpha --gain --load -N --nodes --rounds --network --loss --delay --csv --svg --png --list --gnuplot -h --help' ;;
    lease) options='--scenario --algorithm --strict --as-documented --seed --seeds --jobs --minutes --csv --plot --gnuplot -h --help' ;;
    replay) options='--rules --hosts --tag --cost --wait --spread --seed --top --csv -h --help' ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
}
complete -F _dthrottle_sim dthrottle-sim
