# tests/e2e/common.sh: what the end-to-end tests share.  Sourced; the working directory becomes a fresh folder.
#
# here: the repository; shardc, models: the programs; cc: the compiler of emitted programs.
# SHARDC=build/shardc names the compiler under test, SHARDC_CC overrides cc (to add -fsanitize=...).
here=$(cd "$(dirname "$0")/../.." && pwd)
shardc=${SHARDC:-$here/build/shardc}
case $shardc in /*) ;; *) shardc=$(pwd)/$shardc ;; esac
models=$(dirname "$shardc")/models
if grep -qF '$models' "$0" && [ ! -x "$models" ]; then
	echo "$0 runs $models, which is not there: make build/models" >&2
	exit 1
fi
cc=${SHARDC_CC:-cc}
digits=$here/examples/digits
text=$here/examples/text
dir=$(mktemp -d) failed=0 count=0
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir" || exit 1
mkdir out

report() { # NAME STATUS
	count=$((count + 1))
	[ "$2" = 0 ] && return
	failed=$((failed + 1))
	echo "FAIL $1"
	head -n 20 log | sed 's/^/     /'
}
# A command succeeds.
check() { # COMMAND...
	"$@" >log 2>&1
	report "$*" $?
}
# Held-out tokens, of which sixteen batches are enough: evaluations would take most of the time.
held_out() { # TOKENS
	head -c $((128 + $1)) "$text/tokens_val.npy" | LC_ALL=C sed "1s/(159457,)/($1,)  /" >held_out.npy
}
# A program ends with this code, says this, and neither a sanitizer nor an internal error speaks.
expect() { # CODE TEXT COMMAND...
	code=$1 say=$2
	shift 2
	"$@" >log 2>&1
	got=$?
	[ $got = "$code" ] && grep -qF -- "$say" log &&
		! grep -qE 'Sanitizer|runtime error:|internal error|Segmentation|Aborted' log
	report "exit $got, wanted $code and \"$say\": $*" $?
}
# The same, and nothing was left in out/.
refuse() { # CODE TEXT COMMAND...
	expect "$@"
	ls -A out >log
	[ ! -s log ]
	report "something was left behind by: $*" $?
	rm -rf out
	mkdir out
}
# Texts of IR lose the options that they say made them: what other options made can be compared.
bare() { # FILE...
	sed -i '/^  train {/s/, options=".*"}$/}/' "$@"
}
finish() { # NAME
	echo "$1: $((count - failed)) of $count passed"
	[ $failed = 0 ]
}
