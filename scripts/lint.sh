#!/usr/bin/env bash
# Checks the sources with clang-format, clang-tidy and, if they are there, shellcheck and pyflakes.
#   lint.sh            all files
#   lint.sh --changed  files that differ from the last commit
# Installs nothing. clang-tidy reads the compile commands of build/lint, or of build/lint-changed.
set -euo pipefail
cd "$(dirname "$0")/.."

# Versions of clang-format disagree, so one is the project's.
for tool in clang-format-14 clang-tidy; do
  command -v "$tool" >/dev/null || {
    echo "make lint needs $tool: apt-get install $tool" >&2
    exit 1
  }
done

# files PATTERN...: the files to check, tracked by git or new.
case ${1-} in
  "") files() { git ls-files -co --exclude-standard --deduplicate -- "$@"; } ;;
  --changed)
    files() {
      git diff --name-only --diff-filter=d HEAD -- "$@"
      git ls-files -o --exclude-standard -- "$@"
    }
    ;;
  *) echo "lint.sh: unknown option '$1' (--changed)" >&2 && exit 2 ;;
esac

status=0

mapfile -t sources < <(files '*.cpp' '*.hpp' '*.cu' '*.cuh')
echo "clang-format: ${#sources[@]} files"
[ ${#sources[@]} -eq 0 ] || clang-format-14 --dry-run --Werror "${sources[@]}" || status=1

mapfile -t scripts < <(files '*.sh' .ci/run)
if command -v shellcheck >/dev/null; then
  echo "shellcheck: ${#scripts[@]} files"
  [ ${#scripts[@]} -eq 0 ] || shellcheck "${scripts[@]}" || status=1
else
  echo "shellcheck: not installed, nothing was checked"
fi

# check_python FILE...: pyflakes, which heeds no "# noqa" by itself, neither in the line that it complains of nor in an
# earlier one that this is about (a fixture is imported, and is a parameter below).
check_python() {
  local file line rest about result=0
  while IFS=: read -r file line rest; do
    about=$line
    if [[ $rest =~ \ from\ line\ ([0-9]+) ]]; then about=${BASH_REMATCH[1]}; fi
    if [[ $about =~ ^[0-9]+$ ]] && sed -n "${about}p" "$file" | grep -q '# noqa'; then continue; fi
    echo "$file:$line:$rest"
    result=1
  done < <("$python" -m pyflakes "$@" 2>&1)
  return "$result"
}
mapfile -t modules < <(files '*.py')
if python=$(scripts/find_python.sh pyflakes 2>/dev/null); then
  echo "pyflakes: ${#modules[@]} files"
  [ ${#modules[@]} -eq 0 ] || check_python "${modules[@]}" || status=1
else
  echo "pyflakes: not installed, nothing was checked"
fi

# What this machine does not compile it cannot check: a backend whose headers are not here. (The
# consumer is compiled by its test, against the installed headers.)
if [ $# -gt 0 ]; then
  build=build/lint-changed
  cmake --preset release -B "$build" -DCMAKE_UNITY_BUILD=OFF >/dev/null
  compiled() { grep -qF "\"$PWD/$1\"" "$build/compile_commands.json"; }
  mapfile -t units < <(files '*.cpp' | while read -r unit; do ! compiled "$unit" || echo "$unit"; done)
  echo "clang-tidy: ${#units[@]} files"
  if [ ${#units[@]} -gt 0 ]; then
    # clang-tidy counts the warnings that it left out of system headers; nobody wants to know.
    printf '%s\0' "${units[@]}" |
      xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$build" \
        2> >(grep -Ev '^[0-9]+ warnings?( and [0-9]+ errors?)? generated' >&2) || status=1
  fi
else
  cmake --preset release -B build/lint >/dev/null
  "$(scripts/find_python.sh)" scripts/tidy.py build/lint || status=1
fi

exit "$status"
