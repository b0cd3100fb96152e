#!/bin/sh
# test_fetch.sh: tests of data/fetch.sh against a server on this machine that serves, cuts and lies.
#
#     sh dev/test/test_fetch.sh
#
# One line a check, then `N passed, N failed`. Needs curl and python3, and skips without them.
set -u

for tool in curl python3; do
    if ! command -v $tool >/dev/null; then
        echo "skipped: $tool is not installed"
        echo "0 passed, 0 failed"
        exit 0
    fi
done

# A copy of the script in a fresh folder downloads into that folder.
script=$(dirname "$0")/../../data/fetch.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/test_fetch_XXXXXX") || exit 1
data=$work/data
mkdir "$data"

# --------------------------------------------------------------------------------------------------
# The server: the first part of a path is how it answers, the last the file that is asked for.
# Each request adds a line to the log: method, path, range, whether the token came along.
cat >"$work/server.py" <<'PYTHON'
import hashlib, http.server, json, os, re, struct, sys

work = sys.argv[1]

def shard(n):
    return struct.pack('<256i', 20240520, 1, n, *[0] * 253) + bytes(i % 251 for i in range(2 * n))

def evaluation(n):
    out = struct.pack('<256i', 20240522, 1, n, 99, *[0] * 252)
    for i in range(n):
        tokens = [1, 2, 3] + [i % 7 + 1] + [65535] * (i % 7 + 1)
        words = [65535, 2 * (3 + len(tokens)), i] + tokens
        out += struct.pack('<%dH' % len(words), *words)
    return out

def safetensors():
    tensors = {'b': {'dtype': 'F32', 'shape': [2000], 'data_offsets': [40, 8040]},
               'a': {'dtype': 'F32', 'shape': [10], 'data_offsets': [0, 40]}}
    header = json.dumps(tensors, separators=(',', ':')).encode()
    return struct.pack('<Q', len(header)) + header + bytes(8040)

story = b'Once there was a cat.\n\nIt sat.\n<|endoftext|>\n\nOnce more.\n<|endoftext|>\n'
files = {
    'vocab.bpe': b'#version: 0.2\nt h\n' * 300, 'merges.txt': b'#version: 0.2\nt h\n' * 300,
    'input.txt': b'First Citizen:\n' * 500, 'hellaswag_val.bin': evaluation(50),
    'config.json': b'{"n_embd": 768}\n', 'vocab.json': b'{"a": 1, "<|endoftext|>": 2}',
    'tokenizer_config.json': b'{"model_max_length": 1024}', 'model.safetensors': safetensors(),
    'TinyStoriesV2-GPT4-train.txt': story * 20, 'TinyStoriesV2-GPT4-valid.txt': story}
for edu in ('', 'edu'):
    for i in range(10):
        name = 'fineweb%s_%s_%06d.bin' % (edu, 'train' if i else 'val', i)
        files[name] = shard(4000 + i)
asked = {}

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, code, body, length=None, headers=()):
        self.send_response(code)
        self.send_header('Content-Length', str(len(body) if length is None else length))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(body)
        self.close_connection = True

    def do_GET(self):
        mode, name = self.path.split('/')[1], self.path.split('/')[-1]
        wanted = self.headers.get('Range', '-')
        token = 'token' if self.headers.get('Authorization') == 'Bearer secret' else '-'
        with open(os.path.join(work, 'log'), 'a') as log:
            log.write('%s %s %s %s\n' % (self.command, self.path, wanted, token))
        first = asked.setdefault(self.path, 0)
        asked[self.path] += 1
        body = files.get(name)
        if mode == 'missing' or body is None:
            return self.answer(404, b'<html>not here</html>')
        if mode == 'forbidden':
            return self.answer(403, b'no')
        if mode == 'busy' and first < 2:
            return self.answer(503, b'later')
        if mode == 'away':
            place = 'http://localhost:%d/good/%s' % (self.server.server_port, name)
            return self.answer(302, b'', headers=[('Location', place)])
        if mode == 'html':
            body = b'<html>please log in</html>' * 100
        if mode == 'empty':
            body = b''
        if mode == 'magic':
            body = b'X' + body[1:]
        if mode == 'version':
            body = body[:4] + b'\2' + body[5:]
        if mode == 'count':
            body = body[:8] + bytes([body[8] + 1]) + body[9:]
        if mode == 'mark':
            body = body[:1024] + b'X' + body[1025:]
        if mode == 'last':
            body = body[:-2]
        if mode == 'flipped':
            body = body[:-1] + bytes([body[-1] ^ 1])
        if mode == 'trailing':
            body += b'xx'
        if mode == 'shorter':
            body = body[:len(body) // 2]
        more = 100 if mode == 'longer' else 0
        headers = []
        if name.startswith('TinyStories') and mode != 'html':
            headers = [('X-Linked-Etag', '"%s"' % hashlib.sha256(files[name]).hexdigest())]
        if mode in ('cut', 'norange') and first == 0:
            return self.answer(200, body[:len(body) // 2], len(body), headers)
        start = re.match(r'bytes=(\d+)-$', wanted)
        if start is None or mode == 'norange':
            return self.answer(200, body, len(body) + more, headers)
        start = int(start.group(1))
        if start >= len(body) + more:
            return self.answer(416, b'', headers=[('Content-Range', 'bytes */%d' % len(body))])
        span = 'bytes %d-%d/%d' % (start, len(body) + more - 1, len(body) + more)
        return self.answer(206, body[start:], len(body) + more - start,
                           headers + [('Content-Range', span)])

    do_HEAD = do_GET

os.makedirs(os.path.join(work, 'truth'))
for name in files:
    with open(os.path.join(work, 'truth', name), 'wb') as out:
        out.write(files[name])
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
with open(os.path.join(work, 'port.part'), 'w') as out:
    out.write(str(server.server_port))
os.rename(os.path.join(work, 'port.part'), os.path.join(work, 'port'))
server.serve_forever()
PYTHON

: >"$work/log"
python3 "$work/server.py" "$work" 2>"$work/server.err" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
waited=0
while [ ! -f "$work/port" ]; do
    waited=$((waited + 1))
    if [ $waited -gt 100 ]; then
        echo "error: server: did not start in 10 s, need python3 and a port on 127.0.0.1" >&2
        exit 4
    fi
    sleep 0.1
done
port=$(cat "$work/port")
truth=$work/truth

# The server's vocabulary and text are not the real ones, so the copy is told their sums.
sum_of() {
    sum=$(sha256sum <"$1" 2>/dev/null || shasum -a 256 <"$1")
    echo "${sum%% *}"
}
sed -e "s/^vocab_sha256=.*/vocab_sha256=$(sum_of "$truth/vocab.bpe")/" \
    -e "s/^shakespeare_sha256=.*/shakespeare_sha256=$(sum_of "$truth/input.txt")/" \
    "$script" >"$data/fetch.sh"

# --------------------------------------------------------------------------------------------------
# Running and checking

passed=0 failed=0

check() {  # NAME COMMAND...
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then
        passed=$((passed + 1))
        printf '%-76s ok\n' "$name"
    else
        failed=$((failed + 1))
        printf '%-76s FAIL\n' "$name"
        printf '    exit code %s; stderr: %s\n' "$code" "$(cat "$work/err")"
    fi
}

# Runs the script against the server's MODE; leaves its exit code, its output and a new log.
run() {  # MODE NAME [N]
    address=http://127.0.0.1:$port/$1
    shift
    : >"$work/log"
    code=0
    HF_ENDPOINT=${endpoint:-$address} HF_TOKEN=${token:-} FETCH_OPENAI=$address \
        FETCH_GITHUB=$address FETCH_TRIES=4 FETCH_DELAY=0 \
        sh "$data/fetch.sh" "$@" >"$work/out" 2>"$work/err" || code=$?
}

fresh() {
    find "$data" -mindepth 1 ! -name fetch.sh -exec rm -rf {} + 2>/dev/null
}

succeeded() { [ "$code" = 0 ] && [ ! -s "$work/err" ]; }
requests() { [ "$(wc -l <"$work/log")" -eq "$1" ]; }                # COUNT
logged() { grep -q -- "$1" "$work/log"; }                           # PATTERN
never_logged() { ! grep -q -- "$1" "$work/log"; }                   # PATTERN
same() { cmp "$truth/$1" "$data/$2"; }                              # FILE OF THE SERVER, FILE HERE
absent() { [ ! -e "$data/$1" ] && [ ! -L "$data/$1" ]; }            # FILE
said() { grep -q -- "$1" "$work/out"; }                             # PATTERN

# The run ended with CODE and one line `error: WHERE: ...` that says TEXT.
refused() {  # CODE WHERE TEXT
    [ "$code" = "$1" ] && [ "$(wc -l <"$work/err")" -eq 1 ] &&
        grep -qF -- "error: $2: " "$work/err" && grep -q -- "$3" "$work/err"
}

# The same for a download, after which nothing bears the file's name.
check_refused() {  # NAME CODE FILE TEXT
    check "$1: one line and exit code $2" refused "$2" "$data/$3" "$4"
    check "$1: no file" absent "$3"
}

shard=fineweb10B/fineweb_train_000001.bin

# --------------------------------------------------------------------------------------------------
# What arrives

run good shakespeare
check "shakespeare" succeeded
check "shakespeare: every byte" same input.txt shakespeare/tinyshakespeare.txt
check "shakespeare: no .part" absent shakespeare/tinyshakespeare.txt.part
check "shakespeare: says the next command" said '^next: ./prepare .*tinyshakespeare.txt'
run good shakespeare
check "shakespeare again: no request" requests 0
check "shakespeare again: says that it is there" said 'tinyshakespeare.txt is there'
run good gpt2
check "gpt2" same vocab.bpe gpt2/vocab.bpe
run good hellaswag
check "hellaswag" same hellaswag_val.bin hellaswag/hellaswag_val.bin
run good hellaswag
check "hellaswag again: no request" requests 0

run good gpt2-weights 355M
check "gpt2-weights 355M" succeeded
check "gpt2-weights 355M: from its repository" logged 'openai-community/gpt2-medium/resolve/main/'
for name in model.safetensors config.json vocab.json merges.txt tokenizer_config.json; do
    check "gpt2-weights 355M: $name" same $name gpt2-weights-355M/$name
done
run good gpt2-weights 355M
check "gpt2-weights 355M again: no request" requests 0
run good gpt2-weights
check "gpt2-weights: 124M is the default" same model.safetensors gpt2-weights-124M/model.safetensors

run good fineweb10B 2
check "fineweb10B 2: shards 0, 1, 2 and vocab.bpe" [ "$(cd "$data/fineweb10B" && echo *)" = \
    "fineweb_train_000001.bin fineweb_train_000002.bin fineweb_val_000000.bin vocab.bpe" ]
check "fineweb10B 2: every byte" same fineweb_train_000002.bin fineweb10B/fineweb_train_000002.bin
run good fineweb10B 3
check "fineweb10B 3: one request for the third" requests 1
run good fineweb10B
check "fineweb10B: 8 is the default" same fineweb_train_000008.bin \
    fineweb10B/fineweb_train_000008.bin
run good finewebedu10B 1
check "finewebedu10B 1" same finewebedu_train_000001.bin \
    finewebedu10B/finewebedu_train_000001.bin

run good tinystories
check "tinystories" succeeded
printf 'Once there was a cat.\nIt sat.\n\nOnce more.\n' >"$truth/stories"
check "tinystories: a blank line between two stories only" same stories tinystories/val.txt
check "tinystories: nothing else stays" [ "$(cd "$data/tinystories" && echo *)" = \
    "train.txt val.txt" ]
check "tinystories: 40 stories to train" [ "$(grep -c Once "$data/tinystories/train.txt")" = 40 ]
check "tinystories: says how to split" said "split-docs '.n.n'"
run good tinystories
check "tinystories again: no request" requests 0

# --------------------------------------------------------------------------------------------------
# Connections that break, and servers that cannot or will not

fresh
run cut fineweb10B 1
check "cut half way: complete" same fineweb_train_000001.bin $shard
check "cut half way: the rest by a range" logged "fineweb_train_000001.bin bytes=4513-"
check "cut half way: two requests a file" requests 6
fresh
run norange fineweb10B 1
check "cut, and no ranges: complete" same fineweb_train_000001.bin $shard
fresh
run busy shakespeare
check "503 twice, then the file" same input.txt shakespeare/tinyshakespeare.txt
fresh
mkdir "$data/shakespeare"
head -c 1000 "$truth/input.txt" >"$data/shakespeare/tinyshakespeare.txt.part"
run good shakespeare
check "a .part of an earlier run: complete" same input.txt shakespeare/tinyshakespeare.txt
check "a .part of an earlier run: the rest by a range" logged 'bytes=1000-'
fresh
mkdir "$data/shakespeare"
cp "$truth/input.txt" "$data/shakespeare/tinyshakespeare.txt.part"
run good shakespeare
check "a .part that is whole: one request" requests 1
check "a .part that is whole: renamed" same input.txt shakespeare/tinyshakespeare.txt
head -c 1000 "$truth/input.txt" >"$data/shakespeare/tinyshakespeare.txt"
run good shakespeare
check "a file that is not whole: fetched again" same input.txt shakespeare/tinyshakespeare.txt
head -c 1000 "$truth/input.txt" >"$data/shakespeare/tinyshakespeare.txt"
run missing shakespeare
check_refused "a file that is not whole, then 404" 4 shakespeare/tinyshakespeare.txt 404

fresh
run missing shakespeare
check_refused "404" 4 shakespeare/tinyshakespeare.txt 'answered 404, need 200'
check "404: asked once" requests 1
run forbidden hellaswag
check_refused "403" 4 hellaswag/hellaswag_val.bin 'answered 403'
endpoint=http://127.0.0.1:1
run good hellaswag
check_refused "no connection" 4 hellaswag/hellaswag_val.bin 'failed 4 times (curl 7'
endpoint=''
ln -s /dev/full "$data/hellaswag/hellaswag_val.bin.part"
run good hellaswag
check "a full disk: one line and exit code 4" refused 4 \
    "$data/hellaswag/hellaswag_val.bin.part" 'room on the disk'
check "a full disk: no file" absent hellaswag/hellaswag_val.bin
fresh
: >"$data/shakespeare"
run good shakespeare
check "a file where the folder should be" refused 4 "$data/shakespeare" 'need one'

# --------------------------------------------------------------------------------------------------
# The wrong content

for mode in html flipped shorter empty trailing; do
    fresh
    run $mode shakespeare
    check_refused "$mode, sha256" 3 shakespeare/tinyshakespeare.txt 'sha256 is .*, need'
    check "$mode, sha256: no .part" absent shakespeare/tinyshakespeare.txt.part
done
run good shakespeare
check "after wrong content, the right one" same input.txt shakespeare/tinyshakespeare.txt

fresh
mkdir "$data/shakespeare"
echo "not this" >"$data/shakespeare/tinyshakespeare.txt.part"
run good shakespeare
check_refused "a .part of another file" 3 shakespeare/tinyshakespeare.txt 'sha256 is'
run good shakespeare
check "a .part of another file: gone at the second call" same input.txt \
    shakespeare/tinyshakespeare.txt

# The vocabulary comes first and is right; the shards are not.
for mode in html:magic empty:magic magic:magic version:version shorter:size trailing:size \
    missing:404 longer:failed; do
    fresh
    run good gpt2
    mkdir "$data/fineweb10B"
    cp "$data/gpt2/vocab.bpe" "$data/fineweb10B"
    run "${mode%:*}" fineweb10B 1
    wanted=3
    case $mode in missing* | longer*) wanted=4 ;; esac
    check_refused "${mode%:*}, shard" $wanted fineweb10B/fineweb_val_000000.bin "${mode#*:}"
done
for mode in html magic version count mark last shorter trailing empty; do
    fresh
    run $mode hellaswag
    check_refused "$mode, evaluation" 3 hellaswag/hellaswag_val.bin 'need'
done
for file in config.json:html vocab.json:shorter vocab.json:last merges.txt:flipped \
    model.safetensors:shorter model.safetensors:html model.safetensors:trailing \
    model.safetensors:empty; do
    name=${file%:*}
    fresh
    run good gpt2-weights
    rm "$data/gpt2-weights-124M/$name"
    run "${file#*:}" gpt2-weights
    check_refused "${file#*:}, $name" 3 "gpt2-weights-124M/$name" 'need'
done
for mode in html flipped shorter; do
    fresh
    run $mode tinystories
    check_refused "$mode, stories" 3 tinystories/TinyStoriesV2-GPT4-valid.txt 'need'
    check "$mode, stories: no text" absent tinystories/val.txt
done

# --------------------------------------------------------------------------------------------------
# The token, and the command line

fresh
token=secret
run good gpt2-weights
check "token: sent to the hub" logged 'config.json - token'
check "token: in no message" sh -c "! grep -rq secret '$work/out' '$work/err'"
run away hellaswag
check "redirect: followed" same hellaswag_val.bin hellaswag/hellaswag_val.bin
check "redirect: the token stays with the hub" logged '^GET /good/hellaswag_val.bin - -'
endpoint=http://127.0.0.1:$port/hub
run good gpt2
check "token: not sent to another host" never_logged token
check "token: the other host was asked" logged '^GET /good/'
endpoint='' token=''

fresh
run good
check "usage: no name" refused 2 NAME "found ''"
run good fineweb
check "usage: an unknown name" refused 2 NAME "found 'fineweb', need shakespeare"
run good shakespeare 3
check "usage: too many arguments" refused 2 shakespeare 'found 2 arguments'
run good gpt2-weights 125M
check "usage: an unknown size" refused 2 SIZE "found '125M', need 124M"
for n in '' 0 -1 08 x 1.5 104 99999999999999999999; do
    run good fineweb10B "$n"
    check "usage: fineweb10B '$n'" refused 2 N "need a number from 1 to 103"
done
run good finewebedu10B 100
check "usage: finewebedu10B 100" refused 2 N "need a number from 1 to 99"
run good --help
check "usage: --help" said 'fineweb10B .N.'
check "usage: nothing was made" [ "$(ls "$data")" = fetch.sh ]
mkdir "$work/tools"
ln -s "$(command -v dirname)" "$work/tools/dirname"
code=0
shell=$(command -v sh)
PATH=$work/tools "$shell" "$data/fetch.sh" gpt2 >"$work/out" 2>"$work/err" || code=$?
check "without curl" refused 4 curl 'not found'

check "the server itself made no mistake" [ ! -s "$work/server.err" ]
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
