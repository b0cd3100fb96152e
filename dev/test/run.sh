#!/bin/sh
# run.sh FOLDER: runs every test on the programs in FOLDER, adds their counts, and closes with one
# line. A test that dies without its own closing line counts as failed. DATA names a folder with real
# text; CC is the compiler of the programs.
out=$1
export OMP_WAIT_POLICY=passive ASAN_OPTIONS=allocator_may_return_null=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

run() {
    echo "--- $*"
    begin=$(date +%s)
    "$@" >"$log" 2>&1
    status=$?
    cat "$log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    set -- ${line:-0 passed, 1 failed}
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + ${5:-0}))
    [ $status -eq 0 ] || [ "$3" -gt 0 ] || failed=$((failed + 1))
    echo "    (exit code $status, $(($(date +%s) - begin)) s)"
}

run "$out/test_gpt"
run "$out/build/test_tokens"
run "$out/build/test_tokenizer" "$out/prepare"
run "$out/build/test_stories" "$out/stories"
run "$out/build/test_files"
run sh dev/test/test_run.sh "$out"
run sh dev/test/test_fetch.sh
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
