#!/bin/sh
# test_run.sh FOLDER: tests of the whole program FOLDER/train_gpt from outside: its command line,
# files, resuming, signals, bad input; with FOLDER/prepare and stories also from text to text.
#
# A line a check: name, how many of its cases went wrong, the bound, ok or FAIL; what went wrong is
# told above it. Then `N passed, N failed, N skipped`, and an exit status. Needs python3, and skips
# without it; what fails or kills a run at a system call needs strace, one check the right to mount.
# Models are tiny (34,208 parameters), and an epoch is the same 32 samples in all runs. Two runs are
# the same when all bytes of their last checkpoints and of their logs are, but for the seconds.
# EVERY=1 tries every system call of a save, not only some.
set -u
if ! command -v python3 >/dev/null; then
    echo "skipped: python3 is not installed"
    echo "0 passed, 0 failed"
    exit 0
fi
# The path of a program that is given relative to here, before the working folder changes.
folder=$(cd "$1" && pwd) || exit 1
files=$(cd "$(dirname "$0")" && pwd)/run_files.py
work=$(mktemp -d "${TMPDIR:-/tmp}/test_run_XXXXXX") || exit 1
trap 'kill $(jobs -p) 2>/dev/null; umount "$work/disk" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive
# A program that ends need not free what it holds, and the leak checker does not run under strace.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
tab=$(printf '\t')

# --------------------------------------------------------------------------------------------------
# The programs: small (data and batch), tiny (a model's shape, too), long (all that interrupts, too)

mkdir bin
PATH=$work/bin:$PATH
cat >bin/small <<END
#!/bin/sh
exec "$folder/train_gpt" --train "data/train_*.bin" --val "data/val_*.bin" --seq 16 --batch 2 \\
    --total-batch 64 --val-tokens 160 --threads 1 "\$@"
END
cat >bin/tiny <<END
#!/bin/sh
exec small --layers 2 --heads 2 --channels 32 --steps 12 "\$@"
END
cat >bin/long <<END
#!/bin/sh
exec tiny --steps 24 --threads 2 --save-every 2 --val-every 3 --sample-every 2 --sample-tokens 14 \\
    "\$@"
END
chmod +x bin/*
ln -s "$folder/train_gpt" bin/train_gpt

# --------------------------------------------------------------------------------------------------
# Checks: cases are counted, and those that went wrong; a check closes them with a line

passed=0 failed=0 skipped=0 cases=0 wrong=0

# check NAME: the verdict on all cases since the last one.
check() {
    if [ $cases -gt 0 ] && [ $wrong -eq 0 ]; then
        verdict=ok passed=$((passed + 1))
    else
        verdict=FAIL failed=$((failed + 1))
    fi
    printf '%-64s %5d of %3d <= %-9d %s\n' "$1" $wrong $cases 0 $verdict
    cases=0 wrong=0
}

skip() {
    skipped=$((skipped + 1))
    printf '%-64s %26s\n' "$1" "skipped: $2"
}

# holds WHAT COMMAND..: a case that is right when the command succeeds.
holds() {
    what=$1
    shift
    cases=$((cases + 1))
    "$@" && return
    wrong=$((wrong + 1))
    echo "    $what: not so: $*"
}

# run COMMAND..: sets status; what it writes is in the files output and errors.
run() {
    timeout 120 "$@" >output 2>errors </dev/null
    status=$?
}

# ends CODE COMMAND..: a case that is right when the command ends with the code.
ends() {
    code=$1
    shift
    cases=$((cases + 1))
    run "$@"
    [ $status -eq "$code" ] && return
    wrong=$((wrong + 1))
    echo "    $*: code $status, need $code: $(head -n 1 errors)"
}

# holds_code CODE: of the process that was waited for last.
holds_code() {
    status=$?
    holds "code $1, not $status" [ $status -eq "$1" ]
}

# refused CODE TEXT COMMAND..: a case that is right when the command ends with the code and one line
# on stderr, `error: .. TEXT ..`, and leaves no folder `no`.
refused() {
    code=$1 text=$2
    shift 2
    cases=$((cases + 1))
    run "$@"
    first='' second='' written=''
    { read -r first && read -r second; } <errors
    [ -e no ] && written=', and a folder'
    case $first in
    error:*"$text"*) [ $status -eq "$code" ] && [ -z "$second$written" ] && return ;;
    esac
    wrong=$((wrong + 1))
    rm -rf no
    echo "    $*: code $status, '$first$second'$written, need $code and one line with '$text'"
}

# await PID COMMAND..: waits until the command succeeds, or the process has ended, or too long.
await() {
    pid=$1 waited=0
    shift
    until "$@" 2>/dev/null || ! kill -0 "$pid" 2>/dev/null || [ $waited -gt 6000 ]; do
        sleep 0.01
        waited=$((waited + 1))
    done
}

# refused_all KIND COMMAND..: every broken file of bad/KIND.tsv, each given to the command.
refused_all() {
    kind=$1
    shift
    while IFS=$tab read -r option path named; do
        refused 3 "$named" "$@" --out no "$option" "$path"
    done <"bad/$kind.tsv"
}

quiet() { # a case that is right when the last command had nothing to say on stderr
    cases=$((cases + 1))
    [ ! -s errors ] && return
    wrong=$((wrong + 1))
    echo "    on stderr: $(head -n 1 errors)"
}

newest() { # FOLDER: its newest checkpoint
    for newest in "$1"/step_??????; do :; done
    echo "$newest"
}

log_of() { cut -f 1-8 "$1/log.tsv"; } # without the seconds

# same A B: two runs, in their last checkpoint and their log.
same() {
    cases=$((cases + 1))
    if [ "$(basename "$(newest "$1")")" != "$(basename "$(newest "$2")")" ]; then
        echo "    $1 ends with $(newest "$1"), $2 with $(newest "$2")"
    elif ! diff -r "$(newest "$1")" "$(newest "$2")" >differ 2>&1; then
        echo "    $(head -n 1 differ)"
    elif [ "$(log_of "$1")" != "$(log_of "$2")" ]; then
        echo "    $1/log.tsv and $2/log.tsv differ"
    else
        return
    fi
    wrong=$((wrong + 1))
}

sums() { (cd "$1" && find . -type f -exec cksum {} + | sort); } # of all in a folder
remember() { sums "$1" >remembered; }
unchanged() { # FOLDER: since it was remembered
    cases=$((cases + 1))
    sums "$1" | diff remembered - >differ && return
    wrong=$((wrong + 1))
    echo "    $1 has changed:" $(sed -n 's/^[<>].* //p' differ | sort -u | head -n 3)
}

# --------------------------------------------------------------------------------------------------
# The runs that others are compared with, and all input files

python3 "$files" data || exit 1
all="--save-every 1 --keep 100 --val-every 5" # checkpoints of all steps
for optimizer in muon adamw; do
    ends 0 tiny --optimizer $optimizer $all --out $optimizer
done
begin=$(date +%s%N)
ends 0 long --out long
duration=$((($(date +%s%N) - begin) / 1000000)) # ms
python3 "$files" models muon/step_000012 || exit 1
check "training ends with code 0"

# A run that waits for room on the disk for seconds, and so runs beside the next sections.
(ulimit -f 100 && exec tiny --out full >full.output 2>full.errors) &
full=$!

# --------------------------------------------------------------------------------------------------
# Options: whatever is wrong with them ends the program before it writes anything

ends 0 small --help
holds "--help on stdout" grep -q -e --muon-lr output
quiet
ends 0 small -h --out no
ends 0 tiny --steps=1 -b=4 -d 128 --seq=16 --out short
check "help, --name=value, letters"

for option in layers heads channels context batch seq total-batch steps seed warmup val-every \
    val-tokens sample-every sample-tokens save-every keep generate top-k threads minutes lr \
    muon-lr weight-decay adam-weight-decay grad-clip cooldown final-lr temperature; do
    for value in 5x -1 '' nan; do
        refused 2 "--$option" tiny "--$option" "$value" --out no
    done
done
check "every number: junk, sign, nothing, nan"

for value in 1.5 1e3 0x10 ' 5' '5 ' 99999999999999999999 -9223372036854775808 auto '--batch'; do
    refused 2 --steps tiny --steps "$value" --out no
done
for value in '' inf 1e999 1,5 ' 0.1' 11; do
    refused 2 --lr tiny --lr "$value" --out no
done
refused 2 "need one of" tiny --optimizer sgd --out no
refused 2 "need one of" tiny --optimizer muo --out no
refused 2 "need one of" tiny --schedule '' --out no
refused 2 "need one of" tiny --precision fp16 --out no
check "numbers and choices that are none"

refused 2 "--steps" tiny --out no --stepz 5
refused 2 "--steps" tiny --out no --Steps=5
refused 2 "--total-batch" tiny --out no --total_batch 64
refused 2 "--sample-every" tiny --out no --sample-evry 64
refused 2 "--temperature" tiny --out no -temperature 1
for arguments in -z - -- word --resume=1 -y1 ''; do
    refused 2 "$arguments" tiny --out no "$arguments"
done
refused 2 "--steps" tiny --out no --steps
refused 2 "-b" tiny --out no -b
check "unknown names, the nearest is named; missing values"

refused 2 "3 heads" tiny --heads 3 --out no
refused 2 "--model" tiny --heads 4 --out no
refused 2 "--model" tiny --channels 36 --out no
refused 2 "--model" tiny --channels 512 --out no
refused 2 "--seq" tiny --context 8 --out no
refused 2 "--total-batch" tiny --total-batch 63 --out no
refused 2 "--total-batch" tiny --total-batch 16 --out no
refused 2 "--total-batch" tiny --batch 3 --out no
refused 2 "--warmup" tiny --warmup 13 --out no
refused 2 "--precision" tiny --precision bf16 --out no
refused 4 "memory" tiny --channels 99968 --heads 781 --layers 1000 --out no
refused 4 "memory" tiny --batch 1048576 --total-batch auto --out no
refused 2 "--prompt" small --train plain/train.bin --val plain/train.bin --prompt x \
    --sample-every 5 --model d1 --out no
check "what does not fit together"

for model in d0 d d01 d4x dx gpt3 GPT2 d99999999999999999999 models/missing; do
    refused 2 "$model" small --model "$model" --out no
done
refused 3 "none_*.bin" tiny --train 'data/none_*.bin' --out no
refused 3 "none.bin" tiny --val data/none.bin --out no
refused 3 "none.bpe" tiny --bpe none.bpe --out no
refused 3 "none.bin" tiny --eval none.bin --out no
refused 4 "data/vocab.bpe" tiny --out data/vocab.bpe
refused 4 "data/vocab.bpe" tiny --out data/vocab.bpe/no
check "names of models; files and folders that are not there"

# --------------------------------------------------------------------------------------------------
# Bad files: code 3 and one line that names the file, before anything is written

refused_all shards tiny
check "shards: header, size, too few tokens, folder, FIFO, device"
refused_all vocabularies tiny
refused 3 "th.bpe" small --model models/wide --bpe data/th.bpe --out no
check "vocabularies: malformed, or of another size than the model's"
refused_all questions tiny --steps 1
refused_all questions small --model muon/step_000012 --steps 0
check "questions: header, sizes, label, tokens"
refused_all floors tiny --steps 1
check "floor.tsv: rows, tokens, values"
# Without a vocabulary beside the shards there is no word about one that does not fit.
refused_all configs small --steps 1 --train plain/train.bin --seq 8
check "config.json: broken, or not as the weights are"
refused_all tensors small --steps 1
check "model.safetensors: header, shapes, places, types, numbers"
refused_all llmc small --steps 1
check "llm.c's model: every word of the header, size, numbers"

# An id behind the vocabulary is seen when it is read.
refused 3 "bad/id/train.bin: token 9 has id 257" \
    tiny --train bad/id/train.bin --bpe data/vocab.bpe --out id
# A shard that changes ends the run; what was saved stays.
cp -r data changing
long --train 'changing/train_*.bin' --steps 9999 --out changed --save-every 1 >output 2>errors &
await $! [ -e changed/step_000001 ]
printf xx >>changing/train_000001.bin
wait $!
holds_code 3
holds "it is named" grep -q "^error: changing/train_000001.bin: changed" errors
ends 0 train_gpt --model "$(newest changed)" --generate 1
check "shards that turn out to be bad in the middle of a run"

# --------------------------------------------------------------------------------------------------
# Other people's models: the same weights give the same text, whatever the file

# text MODEL: what it writes.
text() { train_gpt --model "$1" --bpe data/vocab.bpe --generate 60 --prompt "the cat " 2>&1; }

same_text() {
    cases=$((cases + 1))
    [ "$(text "$1")" = "$(text "$2")" ] && return
    wrong=$((wrong + 1))
    echo "    $1 and $2 write different texts"
}

same_text muon/step_000012 models/wide
same_text muon/step_000012 models/short
same_text muon/step_000012 models/wide.bin
same_text models/BF16 models/BF16_wide
same_text models/BF16 models/BF16.bin
same_text models/F16 models/F16_wide
holds "rounding is seen" [ "$(text models/F16)" != "$(text models/BF16)" ]
check "hub folders, llm.c v3 and v5, F16 and BF16: the same text"

# --model starts a new run from weights alone: its first loss is the other run's last. The same
# command with --resume goes on with that run.
first_loss() { sed -n 2p "$1/log.tsv" | cut -f 3; }
last_loss() { tail -n 1 "$1/log.tsv" | cut -f 3; }
for model in muon/step_000012 models/short models/wide.bin; do
    rm -rf new
    ends 0 small --model $model --steps 2 --out new
    ends 0 small --model $model --steps 2 --out new --resume
    holds "the loss goes on from $model" [ "$(first_loss new)" = "$(last_loss muon)" ]
    holds "two steps" [ -e new/step_000002 ]
done
check "--model PATH: a new run from its weights alone"

# --------------------------------------------------------------------------------------------------
# Exactness: threads, micro batches, resuming at every step

for optimizer in muon adamw; do
    for threads in 2 3 4; do
        rm -rf other
        ends 0 tiny --optimizer $optimizer $all --threads $threads --out other
        same other $optimizer
    done
done
check "1, 2, 3, 4 threads: the same bytes"

# largest_gap A B: between the losses of two logs.
largest_gap() {
    paste "$1/log.tsv" "$2/log.tsv" | awk '
        NR > 1 { d = $3 > $12 ? $3 - $12 : $12 - $3; if (d > most) most = d }
        END { print most + 0 }'
}
below() { awk "BEGIN { exit !($1 < $2) }"; }

ends 0 tiny --steps 3 --out micro_2
for batch in 1 4; do
    ends 0 tiny --steps 3 --batch $batch --out micro_$batch
    holds "$batch a micro batch" below "$(largest_gap micro_2 micro_$batch)" 1e-6
done
check "4 x 1, 2 x 2, 1 x 4 micro batches: losses within 1e-6"

# begin_again RUN STEP..: the folder `again` as the run was when the last step was saved.
begin_again() {
    rm -rf again
    mkdir again
    cp "$1/log.tsv" "$1/options.tsv" again
    run=$1
    shift
    for step; do cp -r "$run/step_$(printf %06d $step)" again; done
}

for optimizer in muon adamw; do
    for step in 1 2 3 4 5 6 7 8 9 10 11 12; do
        begin_again $optimizer $step
        ends 0 train_gpt --out again --resume --save-every 0
        same again $optimizer
    done
    check "$optimizer: resumed at every step: the same bytes"
done

begin_again muon 2
for step in 5 9 12; do # each goes on from what the one before it has saved
    ends 0 train_gpt --out again --resume
    quiet
    same again muon
    mv again chain
    begin_again chain $step
    rm -rf chain
done
check "resumed three times: the same bytes"

# --------------------------------------------------------------------------------------------------
# Damage: a broken checkpoint is named and passed over, and the run ends with the same bytes

# damage HOW FILE
damage() {
    size=$(wc -c <"$2")
    case $1 in
    missing) rm "$2" ;;
    cut) head -c $((size / 2)) "$2" >part && cp part "$2" ;;
    line) head -n 1 "$2" >part && cp part "$2" ;;
    longer) echo x >>"$2" ;;
    flipped)
        byte=$(od -An -tu1 -j $((size / 2)) -N 1 "$2")
        printf "\\$(printf %o $((byte ^ 1)))" |
            dd of="$2" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
        ;;
    esac
}

# goes_on OPTION..: in `again` the newest is broken, and the one before it is not.
goes_on() {
    ends 0 train_gpt --out again --resume "$@"
    holds "the broken one is named" grep -q '^warning: again/step_0000' errors
    same again muon
}

for file in muon/step_000010/*; do
    for how in missing cut longer flipped; do
        begin_again muon 9 10
        damage $how "again/step_000010/$(basename "$file")"
        goes_on --save-every 0
    done
done
begin_again muon 9 10
damage line again/step_000010/CHECKSUMS # nothing is known of the other files then
goes_on --save-every 0
check "each file of the newest checkpoint: missing, cut, longer, flipped"

begin_again muon 8 12
damage flipped again/step_000012/model.safetensors
goes_on --save-every 0
begin_again muon 8 11 12
damage cut again/step_000011/model.safetensors
damage cut again/step_000012/model.safetensors
goes_on --save-every 1 --keep 2
ends 0 train_gpt --out again --resume
quiet # all are whole again
check "broken ones are replaced, and do not count among --keep"

begin_again muon 8
mkdir again/step_000013.tmp again/step_abc again/step_-1 again/step_8
mkdir again/step_99999999999999999999
: >again/step_9
ends 0 train_gpt --out again --resume --save-every 0
quiet
same again muon
begin_again muon 8
: >again/step_000010
mkdir again/step_000011
goes_on --save-every 1
begin_again muon 11 12
damage flipped again/step_000011/model.safetensors
damage flipped again/step_000012/optimizer.safetensors
remember again
ends 6 train_gpt --out again --resume
unchanged again
check "names that are no checkpoints; no whole one: code 6"

# --------------------------------------------------------------------------------------------------
# Rules of resuming: what changes the numbers is refused with code 6 and its name

# differs NAME OPTION..
differs() {
    name=$1
    shift
    begin_again muon 6 9
    remember again
    refused 6 "$name" train_gpt --out again --resume "$@"
    unchanged again
}
differs seed --seed 43
differs seq --seq 8 --context 16
differs total-batch --total-batch 128
differs optimizer --optimizer adamw
differs lr --lr 0.1
differs muon-lr --muon-lr 0.1
differs weight-decay --weight-decay 0
differs grad-clip --grad-clip 1
differs schedule --schedule cosine
differs warmup --warmup 1
differs cooldown --cooldown 0.25
differs final-lr --final-lr 0.1
differs data --train 'data/val_*.bin'
differs vocabulary --bpe data/th.bpe
differs layers --layers 3
differs heads --heads 1
differs channels --channels 64
differs positions --context 32
differs steps --steps 11
differs seed --steps 14 --seed 43
check "another seed, rate, schedule, data, ..: code 6, named"

ends 0 small --model d1 --steps 1 --bpe data/th.bpe --out d1
refused 6 layers small --out d1 --resume --model d2
refused 6 vocabulary small --out d1 --resume --bpe data/he.bpe
check "another vocabulary of the same size, another model: code 6"

ends 0 tiny --out empty --resume --save-every 1 --keep 100 --val-every 5
same empty muon
remember empty
refused 6 empty tiny --out empty
unchanged empty
ends 0 train_gpt --out empty --resume
same empty muon
check "--resume in an empty folder, at the end; a new run beside an old"

for change in "--batch 1" "--batch 4" "--threads 2" "--keep 3" "--val-every 3"; do
    begin_again muon 8
    ends 0 train_gpt --out again --resume $change
    holds "all steps with $change" [ -e again/step_000012 ]
done
check "other micro batches, threads, intervals are allowed"

# Under wsd a longer run goes on from before the cooldown, and then is the run that was as long from
# the start. Muon's momentum warm-up stays what it was: steps/5, which is 2 for 10, 12 and 14 steps.
for optimizer in muon adamw; do
    rm -rf longer fresh
    ends 0 tiny --optimizer $optimizer --warmup 2 --steps 14 --out fresh
    ends 0 tiny --optimizer $optimizer --warmup 2 --steps 10 --save-every 2 --out longer
    for steps in 12 14; do
        ends 0 train_gpt --out longer --resume --steps $steps
    done
    same longer fresh
    for cooled in 8 10 12; do
        ends 0 train_gpt --model longer/cooled_$(printf %06d $cooled) --generate 1
    done
done
check "wsd: 10 + 2 + 2 steps are 14, the cooled weights are kept"

rm -rf longer
tiny --warmup 2 --steps 10 --optimizer adamw --out longer >output
mv longer/step_000005 aside
remember longer
refused 6 "longer: " train_gpt --out longer --resume --steps 14
unchanged longer
# A run that is made longer, and ends before it has saved anything.
mv aside longer/step_000005
mv longer/step_000010 longer/cooled_000010
sed "s/^steps.*/steps${tab}14/" longer/options.tsv >edited && mv edited longer/options.tsv
ends 0 train_gpt --out longer --resume
same longer fresh
ends 0 tiny --schedule cosine --steps 10 --out cosine
ends 0 train_gpt --out cosine --resume --steps 14
holds "the last step" [ -e cosine/step_000014 ]
check "longer: no checkpoint before the fall, an early end, cosine"

prompt=$(printf 'two\nlines\tand = a \\ tab')
ends 0 tiny --steps 2 --prompt "$prompt" --out prompt
ends 0 train_gpt --out prompt --resume --steps 4 --schedule wsd --sample-every 4
holds "the prompt is as it was" grep -q "lines${tab}and = a .* tab" output
check "options.tsv keeps any text"

# --------------------------------------------------------------------------------------------------
# Signals: whenever they come, the run that goes on afterwards ends with the same bytes

random=1
wait_up_to() { # MILLISECONDS, at random
    random=$(((random * 1103515245 + 12345) % 2147483648))
    milliseconds=$((random / 65536 % $1))
    sleep "$((milliseconds / 1000)).$(printf %03d $((milliseconds % 1000)))"
}

tidy() { # FOLDER: nothing half-done is left in it
    holds "tidy" [ -z "$(find "$1" -name '*.tmp' -o -name '*.old')" ]
}

# storm COUNT MILLISECONDS SIGNAL..: runs that are sent the signals in turn after a random time, and
# go on where the one before was stopped, until so many have been hit.
storm() {
    count=$1 time=$2 hit=0 tries=0
    shift 2
    rm -rf storm
    while [ $hit -lt "$count" ] && [ $tries -lt 500 ]; do
        tries=$((tries + 1)) signal=$1
        shift
        set -- "$@" "$signal"
        long --out storm --resume >output 2>errors &
        wait_up_to "$time"
        kill -s "$signal" $! 2>/dev/null
        wait $! 2>/dev/null
        status=$?
        quiet
        case $signal$status in
        TERM143 | INT130 | KILL137) hit=$((hit + 1)) ;;
        *0) # it was at its end
            same storm long
            rm -rf storm
            ;;
        *) holds "code $status after $signal" false ;;
        esac
        [ "$signal" = KILL ] || saved_last_step storm
    done
    ends 0 long --out storm --resume
    same storm long
    tidy storm
}

# A run that was asked to end has saved all it has done.
saved_last_step() {
    [ -e "$1/log.tsv" ] || return
    last=$(awk '$2 == "train" { step = $1 } END { print step + 0 }' "$1/log.tsv")
    [ "$last" -eq 0 ] || holds "step $last is saved" [ -e "$1/step_$(printf %06d "$last")" ]
}

storm 12 $((duration / 2)) TERM INT
check "SIGTERM, SIGINT at 12 random times: saved; the same bytes"
storm 20 $((duration / 3)) KILL
check "SIGKILL at 20 random times, one after the other: the same bytes"

# Each would take minutes: one step, one evaluation, one sample, one text.
started() { [ -s slow/log.tsv ] || [ -s output ]; }
stops() { # OPTION..
    rm -rf slow output
    tiny --out slow "$@" >output 2>errors &
    await $! started
    sleep 0.1
    kill -s TERM $!
    await $! false
    kill -s KILL $! 2>/dev/null
    wait $! 2>/dev/null
    holds_code 143
}
stops --total-batch 64000000 --val-every 0
holds "the step is saved" [ -e slow/step_000000 ]
stops --val long/val.bin --val-tokens 100000000
holds "the step is saved" [ -e slow/step_000000 ]
stops --sample-every 1 --sample-tokens 1000000 --temperature 0
holds "the step is saved" [ -e slow/step_000000 ]
stops --generate 1000000000
check "SIGTERM in a long step, evaluation, sample, text"

# A stopped process gets both signals at once.
long --out twice --save-every 0 --steps 9999 >output 2>errors &
await $! [ -s twice/log.tsv ]
kill -s STOP $!
kill -s INT $! && kill -s TERM $! && kill -s CONT $!
wait $! 2>/dev/null
status=$?
holds "code 130 or 143, not $status" [ "${status#130}" != "${status#143}" ]
holds "nothing is saved" [ ! -e "$(newest twice)" ]
check "a second signal ends at once"

long --out user --save-every 0 --keep 9 >output 2>errors &
await $! [ -s user/log.tsv ]
kill -s USR1 $!
saved() { [ -e "$(newest "$1")" ]; }
await $! saved user
asked=$(newest user)
wait $!
holds_code 0
holds "something is saved" [ -e "$asked" ]
holds "where nothing was due: $asked" [ "${asked%12}" = "${asked%24}" ]
same user long
check "SIGUSR1 saves and goes on"

ends 0 long --out minutes --save-every 0 --minutes 0.00005
first=$(newest minutes)
holds "something is saved" [ -e "$first" ]
holds "before the end" [ ! -e minutes/step_000024 ]
ends 0 train_gpt --out minutes --resume
holds "the next run has its own time" [ "$(newest minutes)" != "$first" ]
ends 0 train_gpt --out minutes --resume --minutes 0
same minutes long
check "--minutes saves and stops; the next call goes on"

# --------------------------------------------------------------------------------------------------
# Failing disks: a run goes on without the checkpoint that it cannot write, and tries the last one
# again for some seconds before it ends with code 4

wait $full # started above, with files of at most 50 kB
holds_code 4
holds "an error closes it" grep -q '^error: full: ' full.errors
holds "warnings come before it" grep -q '^warning: full/step_000012: ' full.errors
holds "no checkpoint, no half of one" [ "$(ls full)" = "$(printf 'log.tsv\noptions.tsv')" ]
holds "all steps are in the log" [ "$(grep -c train full/log.tsv)" -eq 12 ]
check "files that cannot grow: trained to the end, then code 4"

cases=$((cases + 1))
tiny --out deaf $all >/dev/full 2>errors || wrong=$((wrong + 1))
quiet
same deaf muon
(tiny --out piped $all && echo fine >piped.end) 2>errors | head -n 1 >output
holds "ends with code 0" [ -e piped.end ]
same piped muon
check "stdout that is full, or that nobody reads: trained to the end"

mkdir disk
if mount -t tmpfs -o size=300k none disk 2>/dev/null; then
    refused 4 "disk" long --keep 1 --out disk/run
    mount -o remount,size=3m disk
    long --keep 1 --out disk/run >output 2>errors &
    await $! [ -e disk/run/log.tsv ]
    kill -s STOP $! 2>/dev/null
    cat /dev/zero >disk/filler 2>/dev/null
    kill -s CONT $! 2>/dev/null
    await $! grep -q "^warning: .*: No space left" errors
    holds "it warns" grep -q "^warning: .*: No space left" errors
    rm disk/filler
    wait $!
    holds_code 0
    same disk/run long
    tidy disk/run
    umount disk
    check "a disk that is too small; that is full for a while"
else
    skip "a disk that is too small; that is full for a while" "no mount"
fi

# --------------------------------------------------------------------------------------------------
# System calls: a save, with the removal of the checkpoint before it, is killed at its calls, and is
# told that they have failed. Of calls that are many every 9th is tried; EVERY=1 tries all.

one="--threads 1 --save-every 4 --keep 1 --schedule constant --val-every 0"
# save_calls STEP: "call k" for the calls of that save, counted from the start of the program.
save_calls() {
    awk -v folder="step_0000$1.tmp" -v every="${EVERY:-9}" '
        { sub(/^[0-9]+ +/, ""); name = $0; sub(/\(.*/, "", name) }
        name !~ /^[a-z0-9]+$/ { next }  # a signal, an exit
        { k = ++n[name] }
        name ~ /mkdir/ && index($0, folder) { inside = 1 }
        inside && index($0, "data/train") { exit }  # the next step reads its tokens
        !inside { next }
        name ~ /mkdir|rename|rmdir/ || ++seen[name] % every == 1 % every { print name, k }
    ' calls.log
}

# inject CALL WHAT COMMAND..: the command under strace, which does that at those calls. To stop at
# no other calls is faster, but strace sends no signals then.
inject() {
    injected=$1 what=$2 only=--seccomp-bpf
    shift 2
    case $what in signal*) only= ;; esac
    run strace -f $only -o /dev/null -e "trace=$injected" -e "inject=$injected:$what" "$@"
}

if strace -f --seccomp-bpf -o /dev/null true 2>/dev/null; then
    ends 0 tiny $one --out one
    all_calls='/^(openat|close|write|fsync|mkdir|rename|unlink|rmdir)'
    ends 0 strace -f --seccomp-bpf -y -o calls.log -e "trace=$all_calls" tiny $one --out calls
    same calls one
    # Power may fail at any time: what has a name must be on the disk.
    holds "files, folder, name are flushed, then the old one goes" awk '
        /openat.*step_000008.tmp.*O_CREAT/ { files++ }
        /fsync.*step_000008.tmp\// { flushed++; file = NR }
        /fsync.*step_000008.tmp>/ { folder = NR }
        /rename.*step_000008.tmp/ { name = NR }
        /fsync.*calls>/ && name && !parent { parent = NR }
        /unlink/ && name && !gone { gone = NR }
        END {
            exit !(files > 2 && files == flushed && file < folder && folder < name &&
                name < parent && parent < gone)
        }' calls.log
    check "a checkpoint is flushed before it has a name"
    save_calls 08 >save_8
    save_calls 12 | head -n 1 >save_12
    holds "the calls of a save are found" [ "$(grep -c mkdir save_8)" -eq 1 ]

    # The last save fails twice, which takes seconds, beside the rest.
    read -r call k <save_12
    strace -f --seccomp-bpf -o /dev/null -e "trace=$call" \
        -e "inject=$call:error=EDQUOT:when=$k..$((k + 1))" \
        tiny $one --out last >/dev/null 2>last.errors &
    last=$!

    while read -r call k; do
        case $call in openat | close) continue ;; esac
        rm -rf killed
        inject "$call" "signal=KILL:when=$k" tiny $one --out killed
        holds "killed at $call $k" [ $status -eq 137 ]
        ends 0 tiny $one --out killed --resume
        quiet
        same killed one
        tidy killed
    done <save_8
    check "killed at the calls of a save: goes on, the same bytes"

    error=EIO
    while read -r call k; do
        rm -rf failing
        [ $error = EIO ] && error=ENOSPC || error=EIO
        inject "$call" "error=$error:when=$k" tiny $one --out failing
        holds "code 0, not $status, with $error at $call $k: $(tail -n 1 errors)" [ $status -eq 0 ]
        holds "one warning at most" [ "$(wc -l <errors)" -le 1 ]
        case $call in
        mkdir* | write | fsync) holds "a warning at $call $k" grep -q '^warning: failing' errors ;;
        esac
        same failing one
        tidy failing
    done <save_8
    check "the calls of a save fail: one warning, the same bytes"

    k=$(awk '$1 == "write" { print $2; exit }' save_8)
    rm -rf failing
    inject write "error=EINTR:when=$k..$((k + 3))" tiny $one --out failing
    quiet
    same failing one
    # Rows that cannot be written to the log may be lost.
    rm -rf failing
    ends 0 strace -f --seccomp-bpf -o /dev/null -P "$(pwd -P)/failing/log.tsv" -e trace=write \
        -e "inject=write:error=ENOSPC:when=4..6" tiny $one --out failing
    holds "one warning" [ "$(grep -c '^warning: ' errors)" -eq 1 ]
    holds "the same checkpoint" diff -r one/step_000012 failing/step_000012
    log_of one >one.log
    holds "no other rows" [ -z "$(log_of failing | grep -vxFf one.log)" ]
    wait $last
    holds_code 0
    holds "two warnings" [ "$(grep -c '^warning: ' last.errors)" -eq 2 ]
    same last one
    check "interrupted writes; a full log; the last save tried again"
else
    skip "calls of a save that are killed, that fail, that are interrupted" "no strace"
fi

# --------------------------------------------------------------------------------------------------
# Numbers: what is not finite gets into no weight and no file

ends 5 small --model models/large --steps 9 --out large
holds "warned at each step" [ "$(grep -c '^warning: step [123]: the gradient of wte' errors)" -eq 3 ]
grep '^error: large: ' errors | grep wte >named
holds "the tensor and the step" grep -q 'steps up to 3' named
holds "nothing is trained on" [ "$(grep -c train large/log.tsv)" -eq 0 ]
remember large/step_000002
ends 5 train_gpt --out large --resume
unchanged large/step_000002
check "weights of 1e30: no update, code 5, the tensor is named"

# The loader refuses numbers that are not finite, so what it loads is finite.
finite() {
    ends 0 train_gpt --model "$(newest "$1")" --generate 1
    ends 5 train_gpt --out "$1" --resume
}
ends 5 tiny --muon-lr 10 --weight-decay 10 --lr 10 --schedule constant --steps 60 --out muon_10
finite muon_10
ends 5 tiny --optimizer adamw --lr 10 --adam-weight-decay 10 --schedule constant --warmup 0 \
    --steps 60 --out adamw_10
finite adamw_10
ends 0 tiny --lr 0 --muon-lr 0 --steps 3 --out still
holds "rates of 0 change no weight" [ "$(first_loss still)" = "$(last_loss still)" ]
check "rates that are far too large: code 5, finite weights; rates of 0"

# --------------------------------------------------------------------------------------------------
# Generation

write() { train_gpt --model muon/step_000012 --generate 40 "$@" 2>errors; }
first=$(write --prompt "the cat")
holds "the same seed" [ "$(write --prompt "the cat")" = "$first" ]
holds "other threads" [ "$(write --prompt "the cat" --threads 1)" = "$first" ]
holds "another seed" [ "$(write --prompt "the cat" --seed 43)" != "$first" ]
holds "another temperature" [ "$(write --prompt "the cat" --temperature 0.5)" != "$first" ]
likeliest=$(write --prompt "the cat" --temperature 0 --seed 7)
holds "top-k 2" [ "$(write --prompt "the cat" --top-k 2)" != "$likeliest" ]
holds "temperature 0" [ "$(write --prompt "the cat" --temperature 0)" = "$likeliest" ]
holds "top-k 1" [ "$(write --prompt "the cat" --top-k 1)" = "$likeliest" ]
holds "top-k 257" [ "$(write --prompt "the cat" --top-k 257)" = "$first" ]
check "seed, temperature, top-k"

for length in 0 1 14 15 16 17 1000; do
    prompt=$(printf "%${length}s" | tr ' ' x)
    ends 0 train_gpt --model muon/step_000012 --generate 10 --prompt "$prompt"
    holds "a prompt of $length bytes first" [ "$(head -c "$length" output)" = "$prompt" ]
    case $length in
    0 | 1) quiet ;;
    *) holds "says that the context is full" [ "$(grep -c context errors)" -eq 1 ] ;;
    esac
done
prompt=$(printf '\377\376\200\300\257x')
ends 0 train_gpt --model muon/step_000012 --generate 3 --prompt "$prompt"
holds "bytes that are not UTF-8" [ "$(head -c 6 output)" = "$prompt" ]
ends 0 train_gpt --model muon/step_000012 --generate 1000
check "prompts up to and past the context, of any bytes; long texts"

ends 0 small --train plain/train.bin --val plain/train.bin --layers 1 --heads 1 --channels 16 \
    --steps 1 --out ids
ends 0 train_gpt --model ids/step_000001 --train plain/train.bin --generate 5
holds "five ids" grep -Eqx '([0-9]+ ){5}' output
refused 2 --prompt train_gpt --model ids/step_000001 --train plain/train.bin --generate 5 --prompt x
check "without a vocabulary: ids"

controls() { LC_ALL=C tr -d '\n\t\r -~\200-\377' <"$1" | wc -c; }
ends 0 train_gpt --model muon/step_000012 --generate 300 --temperature 100
holds "all bytes in a file" [ "$(controls output)" -gt 0 ]
ends 0 python3 "$files" terminal train_gpt --model muon/step_000012 --generate 300 --temperature 100
holds "none that drives a terminal" [ "$(controls output)" -eq 0 ]
ends 0 python3 "$files" terminal tiny $all --out terminal
holds "a line that renews itself" [ "$(tr -cd '\r' <output | wc -c)" -gt 12 ]
same terminal muon
check "on a terminal: no control characters, one live line"

# --------------------------------------------------------------------------------------------------
# Evaluation

# loss OPTION..: leaves the printed line in `line`.
loss() {
    rm -rf loss
    ends 0 small --model muon/step_000012 --steps 0 --val-tokens 5000 --total-batch auto \
        "$@" --out loss
    line=$(grep '^val loss' output)
}
loss
first=$line
for variant in "--batch 1" "--batch 3" "--batch 64" "--threads 2" "--threads 4"; do
    loss $variant
    holds "the loss with $variant" [ "$line" = "$first" ]
done
holds "all 37 + 24 samples" grep -q "on 976 tokens" output
holds "the floor: 1 a token" grep -q "^floor  *1\.0000 " output
loss --val-tokens 175
holds "the first 10 samples" grep -q "on 160 tokens" output
holds "the loss of the run" [ "$(first_loss loss)" = "$(last_loss muon)" ]
check "the loss of any --batch, --threads; --val-tokens; the floor"

ends 0 tiny --train plain/train.bin --val plain/train.bin --bpe data/vocab.bpe --out bytes
holds "nats / ln 2" awk '
    NR > 1 { d = $3 / log(2) - $4; bad += d * d > 1e-12 }
    END { exit bad > 0 }' bytes/log.tsv
holds "unknown for ids" awk 'NR > 1 { bad += $4 != "-" } END { exit bad > 0 }' ids/log.tsv
check "bits a byte"

# Of the four files with the same questions each calls another answer right.
: >answers
for label in 0 1 2 3; do
    for threads in 2 1; do
        ends 0 small --model muon/step_000012 --steps 0 --eval data/label_$label.bin \
            --threads $threads --out no
        answer=$(grep '^questions' output)
        [ $threads -eq 1 ] || echo "$answer" >>answers
    done
    holds "one thread" [ "$answer" = "$(tail -n 1 answers)" ]
done
holds "shares that add up" awk '{ mean += $2; sum += $8 }
    END { exit !(mean > 99.9 && mean < 100.1 && sum > 99.9 && sum < 100.1) }' answers
holds "nothing is written" [ ! -e no ]
ends 0 tiny $all --eval data/label_0.bin --out asked
holds "answers at the end" grep -q '^questions .* of 9 in data/label_0.bin' output
same asked muon
check "--eval: at once with --steps 0, or at the end"

# --------------------------------------------------------------------------------------------------
# Anywhere: the current folder, the place of the files, time, locale are in no file

mkdir -p "a place/with spaces"
cp data/* "a place/with spaces"
cases=$((cases + 1))
(
    cd "a place" && umask 022 &&
        LC_ALL=de_DE.UTF-8 TZ=Asia/Tokyo "$folder/train_gpt" --train "with spaces/train_*.bin" \
            --val "with spaces/val_*.bin" --seq 16 --batch 2 --total-batch 64 --val-tokens 160 \
            --layers 2 --heads 2 --channels 32 --steps 12 $all --out "with spaces/run"
) >output 2>errors || wrong=$((wrong + 1))
same "a place/with spaces/run" muon
cases=$((cases + 1))
(cd "a place" && "$folder/train_gpt" --out "with spaces/run" --resume) >output 2>errors ||
    wrong=$((wrong + 1))
same "a place/with spaces/run" muon
holds "files that all may read" [ -z "$(find "a place/with spaces/run" -type f ! -perm 644)" ]
check "a folder with spaces, another locale: the same bytes"

# The columns are an interface; seconds never fall.
holds "log.tsv" awk -F "\t" '
    NR == 1 { bad = $0 != "step\tsplit\tloss\tbpb\tgrad_norm\tlr\tmuon_lr\ttokens\tseconds"; next }
    NF != 9 || $3 !~ /^[0-9]+\.[0-9]+$/ || $8 != 64 * $1 || $9 < seconds { bad = 1 }
    $2 == "train" && $1 != ++step { bad = 1 }
    { seconds = $9; n[$2]++ }
    END { exit bad || n["train"] != 12 || n["val"] != 4 }' muon/log.tsv
holds "options.tsv" awk -F "\t" 'NF != 2 { bad = 1 } END { exit bad || NR < 30 }' muon/options.tsv
holds "config.json" python3 -c 'import json; json.load(open("muon/step_000012/config.json"))'
holds "vocab.json" python3 -c '
import json
assert len(json.load(open("muon/step_000012/vocab.json"))) == 257'
holds "merges.txt" cmp -s muon/step_000012/merges.txt data/vocab.bpe
check "log.tsv, options.tsv and the hub's files can be read"

# --------------------------------------------------------------------------------------------------
# From text to text

if [ -x "$folder/prepare" ] && [ -x "$folder/stories" ]; then
    ends 0 "$folder/stories" --out stories --train-mb 0.1 --val-stories 20 --questions 20
    ends 0 "$folder/prepare" stories/train.txt --val-text stories/val.txt --split-docs '\n\n' \
        --vocab 300 --out stories
    ends 0 "$folder/prepare" --eval stories/questions.tsv --out stories
    ends 0 train_gpt --train 'stories/train_*.bin' --val 'stories/val_*.bin' \
        --eval stories/questions.bin --layers 1 --heads 2 --channels 32 --seq 64 --batch 8 \
        --steps 20 --out stories/run
    for line in 'val loss .* bits/byte' 'floor .* gap' 'questions .* of 20'; do
        holds "a line '$line'" grep -q "^$line" output
    done
    holds "the vocabulary goes along" cmp -s stories/vocab.bpe stories/run/step_000020/merges.txt
    ends 0 train_gpt --model stories/run/step_000020 --prompt "Once" --generate 20
    check "stories, prepare, train, ask, write"
else
    skip "stories, prepare, train, ask, write" "not built"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
