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

mapfile -t native < <(git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh')
mapfile -t cython < <(git ls-files '*.pyx' '*.pxd' '*.pxi')

if [ "$fix" = --fix ]; then
  ruff check --quiet --fix
  ruff format --quiet
  clang-format -i "${native[@]}"
fi
check ruff check --quiet
check ruff format --quiet --check
check clang-format --dry-run -Werror "${native[@]}"
check cython-lint "${cython[@]}"
check codespell $(git ls-files)
check mypy

if [ ${#failed[@]} -gt 0 ]; then
  echo "lint: failed: ${failed[*]}"
  exit 1
fi
echo "lint: clean"
