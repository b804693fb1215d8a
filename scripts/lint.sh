#!/usr/bin/env bash
# All linters, as CI and pre-commit run them. `scripts/lint.sh --fix` mends what can be mended.
# Tools: pip install --group lint
set -uo pipefail
cd "$(dirname "$0")/.."

fix=${1:-}
failed=()
check() {
  "$@" || failed+=("$1")
}

mapfile -t native < <(git ls-files --cached --others --exclude-standard \
  '*.c' '*.h' '*.cpp' '*.cu' '*.cuh')
mapfile -t cython < <(git ls-files --cached --others --exclude-standard '*.pyx' '*.pxd' '*.pxi')

if [ "$fix" = --fix ]; then
  ruff check --quiet --fix
  ruff format --quiet
  [ ${#native[@]} -eq 0 ] || clang-format -i "${native[@]}"
fi
check ruff check --quiet
check ruff format --quiet --check
[ ${#native[@]} -eq 0 ] || check clang-format --dry-run -Werror "${native[@]}"
[ ${#cython[@]} -eq 0 ] || check cython-lint "${cython[@]}"
check codespell
check mypy

if [ ${#failed[@]} -gt 0 ]; then
  echo "lint: failed: ${failed[*]}"
  exit 1
fi
echo "lint: clean"
