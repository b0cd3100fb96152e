#!/bin/sh
# fetch.sh NAME [N]: real corpora and weights from the network, into the folder of this script.
#
#   shakespeare          tinyshakespeare, 1 MB of text
#   gpt2                 GPT-2's merges (vocab.bpe)
#   gpt2-weights [SIZE]  GPT-2's weights: 124M (the default), 355M, 774M or 1558M
#   tinystories          2 GB of short stories, one paragraph each, with a blank line between two
#   hellaswag            10,042 endings to choose, as token ids
#   fineweb10B [N]       FineWeb as GPT-2 tokens: N (8) shards of 200 MB to train, one to validate
#   finewebedu10B [N]    the same of FineWeb-Edu
#
# A file is downloaded into FILE.part, taken up again where a connection was cut, checked, and only
# then renamed: what stands under its own name is complete. What is there and good is not fetched.
# Errors are one line. Exit codes: 2 usage, 3 the wrong content, 4 network or disk.
# HF_ENDPOINT, HF_TOKEN: another address of the Hugging Face hub, and a token for it.
# FETCH_OPENAI, FETCH_GITHUB, FETCH_TRIES, FETCH_DELAY: other addresses; tries a file and the
# seconds between them.
set -eu

data=$(dirname "$0")
hub=${HF_ENDPOINT:-https://huggingface.co}
hub=${hub%/}
openai=${FETCH_OPENAI:-https://openaipublic.blob.core.windows.net}
github=${FETCH_GITHUB:-https://raw.githubusercontent.com}

# The files whose every byte is known.
vocab_sha256=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
shakespeare_sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

die() {  # CODE WHERE TEXT
    printf 'error: %s: %s\n' "$2" "$3" >&2
    exit "$1"
}

# curl's configuration with the token, which so appears in no list of processes. The hub alone
# gets it: curl sends it to no other host that a redirect may lead to.
credentials() {  # URL
    if [ -n "${HF_TOKEN:-}" ] && [ "${1#"$hub/"}" != "$1" ]; then
        printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN"
    fi
}

# --------------------------------------------------------------------------------------------------
# Checks: each prints what is wrong with the file, its last argument, or nothing

check_sha256() {  # SUM FILE
    sum=$(sha256sum <"$2" 2>/dev/null || shasum -a 256 <"$2")
    sum=${sum%% *}
    [ "$sum" = "$1" ] || echo "sha256 is $sum, need $1"
}

size_of() {  # FILE
    echo $(($(wc -c <"$1")))
}

# Sets magic, version and count to a file's first three 32-bit words, to 0 where it is shorter.
read_header() {  # FILE
    # shellcheck disable=SC2046
    set -- $(od -An -td4 -N12 "$1") 0 0 0
    magic=$1 version=$2 count=$3
}

check_magic() {  # MAGIC FILE
    read_header "$2"
    if [ "$magic" != "$1" ]; then echo "magic is $magic, need $1"
    elif [ "$version" != 1 ]; then echo "version is $version, need 1"
    fi
}

# A header of 1024 bytes, then two bytes a token.
check_shard() {  # FILE
    problem=$(check_magic 20240520 "$1")
    read_header "$1"
    size=$(size_of "$1")
    if [ -n "$problem" ]; then echo "$problem"
    elif [ "$count" -lt 1 ] || [ "$size" -ne $((1024 + 2 * count)) ]; then
        echo "size is $size bytes, need $((1024 + 2 * count)) for its $count tokens"
    fi
}

# Behind the header, one 16-bit stream an example: 65535, its bytes, and so on. The lengths must
# lead from one 65535 to the next, and from the last example to the end.
check_eval() {  # FILE
    problem=$(check_magic 20240522 "$1")
    read_header "$1"
    if [ -n "$problem" ]; then
        echo "$problem"
        return
    fi
    od -An -v -tu2 -j1024 "$1" | awk -v count="$count" '
        { for (i = 1; i <= NF; i++) {
            if (words == start && $i != 65535) broken = 1
            if (words == start + 1) { length_of = $i; examples++ }
            words++
            if (words == start + 2) next_start = start + int(length_of / 2)
            if (words > start + 1 && words == next_start) start = words
        } }
        END { if (broken || start != words || examples != count)
            printf "%d examples in %d bytes, need %d\n", examples, 1024 + 2 * words, count }'
}

# A 64-bit length, that much JSON with the end of every tensor, and the tensors, to the last byte.
check_safetensors() {  # FILE
    size=$(size_of "$1")
    json=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    if [ "$size" -lt 8 ] || [ ${#json} -gt 9 ] || [ "$json" -gt $((size - 8)) ]; then
        echo "not a safetensors file, need one"
        return
    fi
    end=$(tail -c +9 "$1" | head -c "$json" | tr -d ' \n' |
        grep -o '"data_offsets":\[[0-9]*,[0-9]*\]' | tr -d ']' | cut -d, -f2 | sort -n | tail -n 1)
    [ "$size" = $((8 + json + ${end:-0})) ] ||
        echo "size is $size bytes, need $((8 + json + ${end:-0})) for its tensors"
}

check_json() {  # KEY FILE
    case $(head -c 1 "$2")$(tail -c 2 "$2" | tr -d '\n') in
    '{'*'}') grep -q "\"$1\"" "$2" || echo "no key \"$1\", need one" ;;
    *) echo "not a JSON object, need one" ;;
    esac
}

# Stories, each with a line <|endoftext|> behind it. Where the hub tells the file's sha256, as it
# does for large files, that must agree.
check_stories() {  # URL FILE
    if ! head -c 65536 "$2" | grep -qF '<|endoftext|>'; then
        echo "no <|endoftext|> in its first 64 KiB, need one"
        return
    fi
    told=$(credentials "$1" | curl -K - -sI "$1" | tr -d '"\r' |
        grep -i '^x-linked-etag:' | cut -d' ' -f2)
    [ -z "$told" ] || check_sha256 "$told" "$2"
}

# --------------------------------------------------------------------------------------------------
# Downloads

# Goes on from what the file's .part holds, as often as it takes.
download() {  # URL FILE
    quiet=-s
    [ ! -t 2 ] || quiet=--progress-bar
    tries=0
    while :; do
        code=0
        status=$(credentials "$1" | curl -K - -fL "$quiet" -C - -o "$2.part" -w '%{http_code}' \
            --connect-timeout 20 --speed-limit 1000 --speed-time 60 "$1") || code=$?
        case $code:$status in
        0:*) break ;;
        22:416) break ;;          # nothing is left to fetch: the check will tell
        33:*) rm -f "$2.part" ;;  # the server cannot go on in the middle: from the start
        22:408 | 22:429 | 22:5*) ;;
        22:*) die 4 "$2" "$1 answered $status, need 200" ;;
        23:*) die 4 "$2.part" "cannot be written, need room on the disk" ;;
        esac
        tries=$((tries + 1))
        [ "$tries" -lt "${FETCH_TRIES:-8}" ] ||
            die 4 "$2" "$1 failed $tries times (curl $code, HTTP $status), need an answer"
        sleep "${FETCH_DELAY:-2}"
    done
}

fetch() {  # URL FILE CHECK [ARGUMENT]
    url=$1 file=$2
    shift 2
    if [ -f "$file" ]; then
        wrong=$("$@" "$file")
        if [ -z "$wrong" ]; then
            echo "$file is there"
            return
        fi
        echo "$file is fetched again: $wrong"
        rm -f "$file"
    fi
    mkdir -p "${file%/*}" 2>/dev/null || die 4 "${file%/*}" "no folder, need one to write to"
    download "$url" "$file"
    wrong=$("$@" "$file.part")
    if [ -n "$wrong" ]; then
        rm -f "$file.part"
        die 3 "$file" "$wrong"
    fi
    mv "$file.part" "$file" 2>/dev/null || die 4 "$file" "cannot be renamed, need a writable folder"
    echo "$file fetched, $(size_of "$file") bytes"
}

fetch_vocabulary() {  # FOLDER
    fetch "$openai/gpt-2/encodings/main/vocab.bpe" "$1/vocab.bpe" check_sha256 "$vocab_sha256"
}

# --------------------------------------------------------------------------------------------------
# The names

# N training shards and the one for validation.
fetch_shards() {  # REPOSITORY FOLDER PREFIX N GREATEST
    case $4 in
    '' | 0* | *[!0-9]* | ?????*) die 2 N "found '$4', need a number from 1 to $5" ;;
    esac
    [ "$4" -le "$5" ] || die 2 N "found '$4', need a number from 1 to $5"
    from=$hub/datasets/$1/resolve/main folder=$2 prefix=$3 last=$4
    fetch_vocabulary "$folder"
    fetch "$from/${prefix}_val_000000.bin" "$folder/${prefix}_val_000000.bin" check_shard
    shard=1
    while [ "$shard" -le "$last" ]; do
        name=$(printf '%s_train_%06d.bin' "$prefix" "$shard")
        fetch "$from/$name" "$folder/$name" check_shard
        shard=$((shard + 1))
    done
    echo "next: ./train_gpt --model d12 --train '$folder/${prefix}_train_*.bin'" \
        "--val '$folder/${prefix}_val_*.bin'"
}

fetch_weights() {  # SIZE
    case $1 in
    124M) model=gpt2 ;;
    355M) model=gpt2-medium ;;
    774M) model=gpt2-large ;;
    1558M) model=gpt2-xl ;;
    *) die 2 SIZE "found '$1', need 124M, 355M, 774M or 1558M" ;;
    esac
    from=$hub/openai-community/$model/resolve/main folder=$data/gpt2-weights-$1
    fetch "$from/config.json" "$folder/config.json" check_json n_embd
    fetch "$from/vocab.json" "$folder/vocab.json" check_json '<|endoftext|>'
    fetch "$from/merges.txt" "$folder/merges.txt" check_sha256 "$vocab_sha256"
    fetch "$from/model.safetensors" "$folder/model.safetensors" check_safetensors
    fetch "$from/tokenizer_config.json" "$folder/tokenizer_config.json" check_json model_max_length
    echo "next: ./train_gpt --model $folder --prompt 'Once upon a time' --generate 100"
}

# The stories' own paragraphs are joined by single newlines, so that a blank line is what separates
# two stories and ./prepare can split there.
fetch_stories() {  # NAME-ON-THE-HUB TEXT
    if [ -s "$2" ]; then
        echo "$2 is there"
        return
    fi
    from=$hub/datasets/roneneldan/TinyStories/resolve/main/$1 raw=${2%/*}/$1
    fetch "$from" "$raw" check_stories "$from"
    awk '
        /^<\|endoftext\|>$/ { ended = 1; next }
        !/[^ \r]/ { next }
        { if (ended && printed) print ""; ended = 0; printed = 1; print }' "$raw" >"$2.part" ||
        die 4 "$2.part" "cannot be written, need room on the disk"
    mv "$2.part" "$2"
    rm "$raw"
    echo "$2 made, $(size_of "$2") bytes"
}

case ${1:-} in
fineweb10B | finewebedu10B | gpt2-weights) most=2 ;;
*) most=1 ;;
esac
[ $# -le "$most" ] || die 2 "$1" "found $# arguments, need at most $most"
command -v curl >/dev/null || die 4 curl "not found, need it to download"

case ${1:-} in
shakespeare)
    text=$data/shakespeare/tinyshakespeare.txt
    fetch "$github/karpathy/char-rnn/master/data/tinyshakespeare/input.txt" "$text" \
        check_sha256 "$shakespeare_sha256"
    echo "next: ./prepare $text --vocab 512 --val-fraction 0.1 --out $data/shakespeare"
    ;;
gpt2)
    fetch_vocabulary "$data/gpt2"
    echo "next: ./prepare TEXT --bpe $data/gpt2/vocab.bpe --val-fraction 0.1 --out DIR"
    ;;
gpt2-weights) fetch_weights "${2-124M}" ;;
tinystories)
    stories=$data/tinystories
    fetch_stories TinyStoriesV2-GPT4-valid.txt "$stories/val.txt"
    fetch_stories TinyStoriesV2-GPT4-train.txt "$stories/train.txt"
    printf 'next: %s %s\n' "./prepare $stories/train.txt --val-text $stories/val.txt" \
        "--split-docs '\\n\\n' --vocab 4096 --out $stories"
    ;;
hellaswag)
    fetch "$hub/datasets/karpathy/llmc-starter-pack/resolve/main/hellaswag_val.bin" \
        "$data/hellaswag/hellaswag_val.bin" check_eval
    echo "next: ./train_gpt --model FOLDER --eval $data/hellaswag/hellaswag_val.bin"
    ;;
fineweb10B) fetch_shards kjj0/fineweb10B-gpt2 "$data/fineweb10B" fineweb "${2-8}" 103 ;;
finewebedu10B) fetch_shards kjj0/finewebedu10B-gpt2 "$data/finewebedu10B" finewebedu "${2-8}" 99 ;;
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
*) die 2 NAME "found '${1:-}', need shakespeare, gpt2, gpt2-weights, tinystories, hellaswag,\
 fineweb10B or finewebedu10B" ;;
esac
